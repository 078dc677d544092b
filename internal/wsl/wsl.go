// Package wsl knows the two sides of a Windows machine with WSL: how a program in a distribution finds the files of
// Windows, and how a program of Windows starts one in a distribution.
package wsl

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strings"
	"time"
	"unicode/utf16"
)

// Program is the program of Windows that starts programs in distributions.
const Program = "wsl.exe"

// timeout is how long programs of Windows, and a distribution that has to start, may take to answer.
const timeout = 30 * time.Second

// Here returns the distribution of WSL that this program runs in; empty: it runs in none. WSL says it in a variable,
// which sudo drops; then the address of the root folder for Windows has it, such as \\wsl.localhost\Ubuntu\.
func Here(ctx context.Context) string {
	if name := os.Getenv("WSL_DISTRO_NAME"); name != "" {
		return name
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	text, err := exec.CommandContext(ctx, "wslpath", "-w", "/").Output() // a part of WSL
	parts := rootPattern.FindStringSubmatch(strings.TrimSpace(string(text)))
	if err != nil || parts == nil {
		return ""
	}
	return parts[1]
}

var rootPattern = regexp.MustCompile(`^\\\\wsl(?:\.localhost|\$)\\([^\\]+)\\?$`)

// Arguments returns those with which Windows starts a program in a distribution. With an empty distribution or user it
// is the default one. No shell reads the words.
func Arguments(distribution, user string, words ...string) (args []string) {
	if distribution != "" {
		args = append(args, "--distribution", distribution)
	}
	if user != "" {
		args = append(args, "--user", user)
	}
	return append(append(args, "--exec"), words...)
}

// Windows is the Windows that a distribution runs in.
type Windows struct {
	root string // the folder with its drives, with a slash at its end
	env  map[string]string
}

// Root returns the folder that has the drives of Windows, as the settings of a distribution, /etc/wsl.conf, name it.
func Root(settings string) string {
	section := ""
	for line := range strings.Lines(settings) {
		line = strings.TrimSpace(line)
		if name, found := strings.CutPrefix(line, "["); found {
			section = strings.ToLower(strings.TrimSuffix(name, "]"))
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		value = strings.Trim(strings.TrimSpace(value), `"`)
		if section == "automount" && strings.EqualFold(strings.TrimSpace(key), "root") && path.IsAbs(value) {
			return strings.TrimSuffix(value, "/") + "/"
		}
	}
	return "/mnt/"
}

// Find returns the Windows whose drives are in a folder, with the environment of its user.
func Find(ctx context.Context, root string) (*Windows, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// /U makes it write UTF-16 and not what the machine's code page has. In a folder of Linux it would complain.
	command := exec.CommandContext(ctx, root+"c/Windows/System32/cmd.exe", "/U", "/C", "set")
	command.Dir = root + "c/"
	text, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("asking Windows for its folders: %w; name the client's file with --file", err)
	}
	w := &Windows{root: root, env: map[string]string{}}
	for line := range strings.Lines(decode(text)) {
		if name, value, found := strings.Cut(strings.TrimRight(line, "\r\n"), "="); found {
			w.env[strings.ToUpper(name)] = value
		}
	}
	if w.env["USERPROFILE"] == "" {
		return nil, errors.New("Windows does not say which folder its user has; name the client's file with --file")
	}
	return w, nil
}

// Getenv returns a variable of the user's environment in Windows.
func (w *Windows) Getenv(name string) string { return w.env[strings.ToUpper(name)] }

var drivePattern = regexp.MustCompile(`^([A-Za-z]):[\\/](.*)$`)

// Path returns where the distribution has a file of Windows.
func (w *Windows) Path(name string) (string, error) {
	parts := drivePattern.FindStringSubmatch(name)
	if parts == nil {
		return "", fmt.Errorf("%s is on no drive of this machine; name the client's file with --file", name)
	}
	return w.root + strings.ToLower(parts[1]) + "/" + path.Clean(strings.ReplaceAll(parts[2], `\`, "/")), nil
}

// Distribution is a distribution of WSL that has Sandlot.
type Distribution struct {
	Name    string
	Sandlot string // the path of the program in it
}

// lookup prints the path of Sandlot's program, as the user's own shells would find it.
const lookup = `command -v sandlot || for f in ~/.local/bin/sandlot /usr/local/bin/sandlot /usr/bin/sandlot; do
if [ -x "$f" ]; then echo "$f"; exit; fi; done; exit 1`

// Locate returns where a distribution has Sandlot; an empty name is that of the default one.
func Locate(ctx context.Context, name string) (*Distribution, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if _, err := exec.LookPath(Program); err != nil {
		return nil, errors.New("there is no wsl.exe: WSL is a part of Windows; `wsl --install` in its terminal " +
			"installs it")
	}
	list, err := exec.CommandContext(ctx, Program, "--list", "--quiet").Output()
	names := strings.Fields(decode(list))
	if err != nil || len(names) == 0 {
		return nil, errors.New("WSL has no distribution; `wsl --install` installs one")
	}
	if name == "" {
		name = names[0] // the default one is the first
	}
	found, err := exec.CommandContext(ctx, Program, Arguments(name, "", "sh", "-lc", lookup)...).Output()
	program := strings.TrimSpace(string(found))
	if i := strings.LastIndex(program, "\n"); i >= 0 { // what the profile prints comes first
		program = program[i+1:]
	}
	if err != nil || !path.IsAbs(program) {
		return nil, fmt.Errorf("there is no Sandlot in the distribution %s of WSL (it has: %s); install it there first",
			name, strings.Join(names, ", "))
	}
	return &Distribution{name, program}, nil
}

// decode returns a text that a program of Windows has written, in UTF-16 or in UTF-8.
func decode(text []byte) string {
	if bytes.IndexByte(text, 0) < 0 {
		return string(text)
	}
	text = bytes.TrimPrefix(text, []byte{0xff, 0xfe})
	units := make([]uint16, len(text)/2)
	for i := range units {
		units[i] = binary.LittleEndian.Uint16(text[2*i:])
	}
	return string(utf16.Decode(units))
}
