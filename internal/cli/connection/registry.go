package connection

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/api/protocol"
	"sandlot/internal/cli/plain"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/plural"
	"sandlot/internal/secret"
)

func (p *commands) search() *cobra.Command {
	var registry string
	var limit int
	c := &cobra.Command{
		Use: "search [WORD...]", Short: "Search for MCP servers in registries, or show one with --show",
		Long: `Search for MCP servers in the registries that the operator's settings name (mcp_registries), such as the
official one. All words must be in the name, the title or the description of an entry, which its publisher wrote.
"sandlot mcp add --registry NAME" adds one.`,
		Example: "  sandlot mcp search weather\n  sandlot mcp search --show io.github.someone/weather",
	}
	var show string
	c.Flags().StringVar(&registry, "registry", "", "search only in the registry of this name")
	c.Flags().StringVar(&show, "show", "", "show what the entry NAME[@VERSION] is and needs")
	c.Flags().IntVar(&limit, "limit", 20, "number of results")
	return p.withJSON(c, func(c *cobra.Command, args []string) error {
		if show != "" {
			e, err := p.entry(c.Context(), registry, show)
			if err != nil {
				return err
			}
			if p.asJSON {
				return p.json(e)
			}
			p.printEntry(e)
			return nil
		}
		found, err := with(c.Context(), p, func(server *client.Client) (hub.RegistryFound, error) {
			return server.SearchRegistry(c.Context(), strings.Join(args, " "), registry, limit)
		})
		if err != nil {
			return err
		}
		if p.asJSON {
			return p.json(found)
		}
		for _, s := range found.Servers {
			state := ""
			if s.Status != "active" {
				state = "  " + s.Status
			}
			fmt.Fprintf(p.Out, "%s@%s  %s%s\n    %s\n", plain.Cell(s.Name), plain.Cell(s.Version),
				plain.Cell(strings.Join(s.Kinds, ", ")), state, plain.Cell(s.Description))
		}
		for _, r := range found.Registries {
			if r.Note != "" {
				fmt.Fprintf(p.Err, "%s: %s\n", r.Name, plain.Cell(r.Note))
			}
		}
		if more := found.Total - len(found.Servers); more > 0 {
			fmt.Fprintf(p.Err, "%s more: --limit shows more\n", plural.Of(more, "server", "servers"))
		}
		if found.Total == 0 {
			fmt.Fprintln(p.Err, "No server has these words.")
		}
		return nil
	})
}

// entry returns an entry of a registry; what is NAME or NAME@VERSION.
func (p *commands) entry(ctx context.Context, registry, what string) (hub.RegistryEntry, error) {
	name, version, _ := strings.Cut(what, "@")
	return with(ctx, p, func(server *client.Client) (hub.RegistryEntry, error) {
		return server.RegistryEntry(ctx, name, version, registry)
	})
}

func (p *commands) printEntry(e hub.RegistryEntry) {
	fmt.Fprintf(p.Out, "%s@%s (registry %s)\n", plain.Cell(e.Name), plain.Cell(e.Version), e.Registry)
	for _, row := range [][2]string{{"Publisher", e.Publisher}, {"Title", e.Title}, {"Description", e.Description},
		{"Repository", e.Repository}, {"Website", e.Website}, {"Published", e.Published}} {
		if row[1] != "" {
			fmt.Fprintf(p.Out, "%-12s %s\n", row[0], plain.Cell(row[1]))
		}
	}
	if e.Status != "active" {
		fmt.Fprintf(p.Out, "%-12s %s %s\n", "Status", e.Status, plain.Cell(e.StatusMessage))
	}
	for _, w := range e.Ways {
		fmt.Fprintf(p.Out, "\n%s: %s %s\n", w.ID, w.Kind, plain.Cell(cmp.Or(w.URL, w.Identifier+" "+w.Version)))
		if !w.Supported {
			fmt.Fprintf(p.Out, "  not supported: %s\n", plain.Cell(w.Why))
			continue
		}
		if w.SHA256 != "" {
			fmt.Fprintf(p.Out, "  its file has the SHA-256 %s\n", w.SHA256)
		}
		for _, note := range w.Notes {
			fmt.Fprintf(p.Out, "  %s\n", plain.Cell(note))
		}
		for _, f := range w.Fixed {
			fmt.Fprintf(p.Out, "  it sets the %s %s\n", f.Place, plain.Cell(strings.TrimSpace(f.Name+" "+f.Value)))
		}
		for _, i := range w.Inputs {
			fmt.Fprintf(p.Out, "  %-30s %s\n", plain.Cell(i.Key), plain.Cell(inputText(i)))
		}
	}
}

// inputText describes a value that the user gives.
func inputText(i hub.RegistryInput) string {
	var about []string
	if i.Required {
		about = append(about, "required")
	}
	if i.Secret {
		about = append(about, "secret")
	}
	if i.Format != "string" {
		about = append(about, i.Format)
	}
	if len(i.Choices) > 0 {
		about = append(about, "one of "+strings.Join(i.Choices, ", "))
	}
	if i.Default != "" {
		about = append(about, "default "+i.Default)
	}
	if len(about) == 0 {
		return i.Description
	}
	return strings.TrimSpace(i.Description + " (" + strings.Join(about, ", ") + ")")
}

// fromRegistry are the flags of adding a server of a registry.
type fromRegistry struct {
	entry, registry, way string
	values               []string
}

func (r *fromRegistry) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&r.entry, "registry", "", "entry of a registry, NAME[@VERSION]: \"sandlot mcp search\" finds them")
	f.StringVar(&r.registry, "from", "", "name of the registry that has the entry of --registry")
	f.StringVar(&r.way, "way", "", "which package or address of the entry (default: the first that is supported)")
	f.StringArrayVar(&r.values, "value", nil, "value that the entry asks for: NAME=VALUE, or NAME for the variable here")
}

// addFromRegistry adds a server of a registry.
func (p *commands) addFromRegistry(c *cobra.Command, r fromRegistry, names []string, yes bool) error {
	given, err := p.parsePairs("value", r.values)
	if err != nil {
		return err
	}
	e, err := p.entry(c.Context(), r.registry, r.entry)
	if err != nil {
		return err
	}
	name := e.SuggestedName
	if len(names) > 0 {
		name = names[0]
	} else if err := p.unused(c.Context(), name); err != nil { // who publishes an entry replaces nobody's server
		return err
	}
	var store map[string]secret.Value
	choice := hub.RegistryChoice{}
	choice.Registry, choice.Name, choice.Version = e.Registry, e.Name, e.Version
	choice.Digest = e.Digest
	choice.Way, choice.ServerName, choice.Values = r.way, name, map[string]string{}
	fmt.Fprintf(p.Err, "%s %s, published by %s in the registry %s\n", plain.Cell(e.Name), plain.Cell(e.Version),
		plain.Cell(e.Publisher), e.Registry)
	if e.Note != "" {
		fmt.Fprintln(p.Err, plain.Cell(e.Note))
	}
	if e.Status == "deprecated" {
		fmt.Fprintf(p.Err, "It is deprecated. %s\n", plain.Cell(e.StatusMessage))
	}
	wanted := func(w hub.RegistryWay) bool { return w.ID == r.way || r.way == "" && w.Supported }
	if i := slices.IndexFunc(e.Ways, wanted); i >= 0 {
		if choice.Values, err = p.values(c.Context(), e.Ways[i], given); err != nil {
			return err
		}
		if store, err = p.references(c.Context(), e.Ways[i], choice.Values); err != nil {
			return err
		}
		choice.Way = e.Ways[i].ID
	}
	plan, err := with(c.Context(), p, func(server *client.Client) (hub.RegistryPlan, error) {
		return server.PlanRegistry(c.Context(), choice)
	})
	if err != nil {
		return err
	}
	for _, n := range plan.Notes {
		fmt.Fprintln(p.Err, plain.Cell(n))
	}
	shown, err := json.MarshalIndent(plan.Arguments, "", "  ")
	if err != nil {
		return err
	}
	fmt.Fprintf(p.Err, "This is the call of %s that adds it:\n%s\n", plan.Tool, plain.Text(string(shown)))
	if !yes {
		if err := p.Confirm(c.Context(), "Add it?"); err != nil {
			return err
		}
	}
	defer p.removeUnused(context.WithoutCancel(c.Context()), store)
	if err := p.storeSecrets(c.Context(), store); err != nil {
		return err
	}
	return p.callWithConsent(c, plan.Tool, plan.Arguments, yes)
}

// unused returns an error if the user has a server of that name.
func (p *commands) unused(ctx context.Context, name string) error {
	list, err := with(ctx, p, func(server *client.Client) (hub.ServerList, error) { return server.Servers(ctx) })
	if err != nil {
		return err
	}
	for _, s := range list.Servers {
		if s.Name == name {
			return p.Usage(fmt.Errorf("there is a server %s, which this one would replace: give another name before --registry, "+
				"or that one if you mean it", plain.Cell(name)))
		}
	}
	return nil
}

// values returns the values of a way: those that were given, and those that the user types.
func (p *commands) values(ctx context.Context, w hub.RegistryWay, given map[string]string) (map[string]string, error) {
	values := map[string]string{}
	for _, i := range w.Inputs {
		v, ok := given[i.Key]
		if !ok {
			v, ok = given[i.Label]
		}
		delete(given, i.Key)
		delete(given, i.Label)
		switch {
		case !ok && i.Required && (i.Default == "" || i.Secret) && p.IsInteractive():
			question := fmt.Sprintf("%s: %s\n%s", plain.Cell(i.Label), plain.Cell(inputText(i)), "Value: ")
			var err error
			if i.Secret {
				var typed secret.Value
				typed, err = p.Hidden(ctx, strings.TrimSuffix(question, "Value: ")+"Value (it is not shown): ")
				v = typed.Reveal()
			} else {
				v, err = p.Ask(ctx, question)
			}
			if err != nil {
				return nil, err
			}
		case !ok:
			continue
		}
		values[i.Key] = v
	}
	for key := range given {
		return nil, p.Usage(fmt.Errorf("--value %s: the entry asks for no such value", fault.Clip(key)))
	}
	for _, i := range w.Inputs {
		if i.Required && values[i.Key] == "" && i.Default == "" {
			return nil, p.Usage(fmt.Errorf("the entry needs --value %s=…: %s", plain.Cell(i.Label), plain.Cell(inputText(i))))
		}
	}
	return values, nil
}

// references puts references in place of values that are secrets, and returns those by the names under which they are to
// be stored: no other secret has them.
func (p *commands) references(ctx context.Context, w hub.RegistryWay, values map[string]string) (
	store map[string]secret.Value, err error) {
	store = map[string]secret.Value{}
	var list protocol.SecretList
	if err := p.listAll(ctx, "/v1/secrets", &list); err != nil {
		return nil, err
	}
	for _, i := range w.Inputs {
		v := values[i.Key]
		if !i.Secret || v == "" || strings.HasPrefix(v, "${secret:") {
			continue
		}
		free := i.SecretName
		for n := 2; slices.ContainsFunc(list.Secrets, func(s hub.Secret) bool { return s.Name == free }); n++ {
			free = fmt.Sprintf("%s_%d", i.SecretName, n)
		}
		store[free], values[i.Key] = secret.Value(v), "${secret:"+free+"}"
	}
	return store, nil
}

func (p *commands) storeSecrets(ctx context.Context, store map[string]secret.Value) error {
	if len(store) == 0 {
		return nil
	}
	client, done, err := p.Connect(ctx)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(store)) {
		if _, err = client.SetSecret(ctx, name, url.Values{}, store[name]); err != nil {
			break
		}
		fmt.Fprintf(p.Err, "%s is stored as a secret\n", name)
	}
	return errors.Join(err, done())
}

// removeUnused removes those secrets that were stored for a server which was not added.
func (p *commands) removeUnused(ctx context.Context, store map[string]secret.Value) {
	var list protocol.SecretList
	if len(store) == 0 || p.listAll(ctx, "/v1/secrets", &list) != nil {
		return
	}
	for _, s := range list.Secrets {
		if _, ours := store[s.Name]; ours && len(s.UsedBy) == 0 &&
			p.ask(ctx, "DELETE", "/v1/secrets/"+url.PathEscape(s.Name), nil, nil) == nil {
			fmt.Fprintf(p.Err, "The secret %s is removed, as no server uses it\n", s.Name)
		}
	}
}
