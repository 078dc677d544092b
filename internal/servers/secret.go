package servers

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// Secrets are what principals have stored under names.
type Secrets interface {
	// Reveal returns the value of one of an owner's, or a fault that says what its
	// user does about it.
	Reveal(ctx context.Context, owner, name string) (secret.Value, error)
}

// reference is how a value of a variable or header refers to a stored secret.
var reference = regexp.MustCompile(`\$\{secret:([A-Za-z_][A-Za-z0-9_]{0,63})\}`)

const (
	referring   = "${secret:"
	maxRevealed = 64 << 10 // of one value, in bytes, with the secrets put in
)

// refers says whether a value has a reference, or something that was to be one.
func refers(value string) bool { return strings.Contains(value, referring) }

// checkReferences says whether each that begins in a value is one.
func checkReferences(argument, key, value string) error {
	if strings.Count(value, referring) == len(reference.FindAllStringIndex(value, -1)) {
		return nil
	}
	return fault.New(fault.InvalidParameters, "%s %s: a reference to a stored secret is ${secret:NAME}, with a name of 1 to 64 letters, digits and _ that does not begin with a digit", argument, key).With("argument", argument)
}

// masked is a value with nothing of it but references.
func masked(value string) string {
	var b strings.Builder
	end := 0
	rest := func(to int) {
		if to > end {
			b.WriteString("…")
		}
	}
	for _, at := range reference.FindAllStringIndex(value, -1) {
		rest(at[0])
		b.WriteString(value[at[0]:at[1]])
		end = at[1]
	}
	rest(len(value))
	return b.String()
}

// references are the values that have some, as they are stored: as written.
func references(values map[string]string) map[string]string {
	var some map[string]string
	for k, v := range values {
		if refers(v) {
			if some == nil {
				some = map[string]string{}
			}
			some[k] = v
		}
	}
	return some
}

// shownReferences are the values with references, as people may see them.
func shownReferences(values map[string]string) map[string]string {
	some := references(values)
	for k, v := range some {
		some[k] = masked(v)
	}
	return some
}

// stored are the values that a record has, and whether these are all.
func (r Record) stored() secrets {
	s := secrets{env: maps.Clone(r.Env), headers: maps.Clone(r.Headers)}
	env, headers := r.missing(s)
	s.known = len(env)+len(headers) == 0
	return s
}

// missing are the names of variables and headers for which there is no value.
func (r Record) missing(s secrets) (env, headers []string) {
	lacks := func(keys []string, values map[string]string) (some []string) {
		for _, k := range keys {
			if _, ok := values[k]; !ok {
				some = append(some, k)
			}
		}
		return some
	}
	return lacks(r.EnvKeys, s.env), lacks(r.HeaderKeys, s.headers)
}

// secretNames are the stored secrets that a record refers to, in order.
func (r Record) secretNames() []string {
	names := map[string]bool{}
	for _, values := range []map[string]string{r.Env, r.Headers} {
		for _, v := range values {
			for _, m := range reference.FindAllStringSubmatch(v, -1) {
				names[m[1]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// revealed returns values with the owner's secrets, as they are now, in the place
// of what refers to them. What was put in is not looked at again.
func (b *Book) revealed(ctx context.Context, owner string, s secrets) (secrets, error) {
	known := map[string]string{}
	fill := func(what string, values map[string]string) (map[string]string, error) {
		full := maps.Clone(values)
		for _, k := range slices.Sorted(maps.Keys(values)) {
			v, err := b.fill(ctx, owner, values[k], known)
			if err == nil && refers(values[k]) && (len(v) > maxRevealed || what == "header" && hasControl(v)) {
				err = fault.New(fault.InvalidParameters, "the %s %s, with the secret in its place, is larger than %d bytes, or none that HTTP knows (a line end?)", what, k, maxRevealed)
			}
			if err != nil {
				return nil, err
			}
			full[k] = v
		}
		return full, nil
	}
	env, err := fill("variable", s.env)
	if err != nil {
		return s, err
	}
	headers, err := fill("header", s.headers)
	return secrets{env: env, headers: headers, known: s.known}, err
}

// fill puts secrets into one value, not far beyond maxRevealed; known are those
// that were looked up already.
func (b *Book) fill(ctx context.Context, owner, value string, known map[string]string) (string, error) {
	var out strings.Builder
	end := 0
	for _, at := range reference.FindAllStringSubmatchIndex(value, -1) {
		name := value[at[2]:at[3]]
		v, ok := known[name]
		if !ok {
			if b.Secrets == nil {
				return "", fault.New(fault.NotFound, "this server stores no secrets")
			}
			s, err := b.Secrets.Reveal(ctx, owner, name)
			if err != nil {
				return "", err
			}
			v = s.Reveal()
			known[name] = v
		}
		out.WriteString(value[end:at[0]])
		out.WriteString(v)
		end = at[1]
		if out.Len() > maxRevealed {
			return out.String(), nil
		}
	}
	out.WriteString(value[end:])
	return out.String(), nil
}

// unrevealed is in the chain of why a server did not start for want of a secret:
// it did nothing wrong, and is tried again when it is used.
type unrevealed struct{ error }

func (u unrevealed) Unwrap() error { return u.error }

// lacking says in words that a server did not start for want of a secret.
func (s *server) lacking(err error) error {
	why := fault.From(err)
	f := s.fault(fault.Connection, err, "cannot start: %s", why.Message)
	if name, ok := why.Context["secret"]; ok {
		f.With("secret", name)
	}
	f.Advice = why.Data().RecoverySuggestions
	return unrevealed{f}
}

// UsesOf tells which of a principal's connections refer to which stored secrets:
// their names, by those of the secrets.
func (b *Book) UsesOf(p auth.Principal) map[string][]string {
	uses := map[string][]string{}
	_ = b.arrive(p) // what cannot be read is in the log
	for _, s := range b.all(p.ID) {
		for _, name := range s.record().secretNames() {
			uses[name] = append(uses[name], s.name)
		}
	}
	return uses
}

// Stored is called when a principal has stored a secret: what waited for it need
// not say so any more. What runs takes it up at its next start.
func (b *Book) Stored(p auth.Principal, name string) {
	_ = b.arrive(p) // what cannot be read is in the log
	for _, s := range b.all(p.ID) {
		s.mu.Lock()
		if s.state == NeedsEnv && slices.Contains(s.rec.secretNames(), name) {
			s.set(Idle, "")
		}
		s.mu.Unlock()
	}
}
