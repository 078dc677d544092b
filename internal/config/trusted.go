package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// fileChecker checks files whose content is treated as the operator's own, and so can make the server run
// programs: nobody else may be able to write such a file, to replace it, or to redirect its path with a
// link.
type fileChecker struct {
	sandboxFolders []string // folders that sandboxes can write
	hasVolumes     bool     // shared has volumes of the settings
	checkUsers     bool     // check that other users of the machine cannot write either
	accountFiles
}

// open checks a file and opens it. The error says why the file must not be read, and what to do.
func (t *fileChecker) open(file string) (*os.File, error) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	resolved, checked, err := t.resolve(abs)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(resolved, openFlags, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !os.SameFile(st, checked) {
		err = errors.New("it was replaced while it was opened")
	}
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("it is a directory, or something else that is not a file")
	}
	if err == nil {
		err = t.checkFile(resolved, st)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// checkFolder checks a folder on the path.
func (t *fileChecker) checkFolder(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	for _, folder := range t.sandboxFolders {
		if shared, err := os.Stat(folder); err == nil && os.SameFile(shared, st) {
			return fmt.Errorf("sandboxes can write it, as it is in the volume %s; move it out of there, or add :ro "+
				"to the volume", folder)
		}
	}
	if !t.checkUsers {
		return nil
	}
	reason, private := t.privateFolder(path, st)
	if private {
		return nil
	}
	return fmt.Errorf("users other than the server's can write it, as they can write the folder %s%s; "+
		"move it to a folder of the server's user, or take the right away (chown, chmod go-w)", path,
		inParentheses(reason))
}

func (t *fileChecker) checkFile(path string, st os.FileInfo) error {
	if reason, private := t.privateFile(path, st); t.checkUsers && !private {
		return fmt.Errorf("users other than the server's can write it%s; take the right away (chown, chmod go-w %s)",
			inParentheses(reason), path)
	}
	if t.hasVolumes && hasSecondName(path, st) {
		return errors.New("sandboxes may write it, as it has a second name (a hard link), which may be in a volume; " +
			"make it a separate file")
	}
	return nil
}

func inParentheses(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

// fileChecker returns a checker that knows the folders that sandboxes can write on this machine: volumes, and
// their own folders in the state folder.
func (c *Config) fileChecker(checkUsers bool) *fileChecker {
	t := &fileChecker{checkUsers: checkUsers, accountFiles: systemAccounts}
	for _, v := range slices.Concat(c.Volumes, c.MCP.runningVolumes) {
		if !v.ReadOnly {
			t.sandboxFolders, t.hasVolumes = append(t.sandboxFolders, v.Source), true
		}
	}
	for _, name := range []string{"workspaces", "sandboxes", "roots"} {
		t.sandboxFolders = append(t.sandboxFolders, filepath.Join(c.Server.StateDir, name))
	}
	return t
}

// CheckTrusted returns an error if the settings file must not be used, since sandboxes can write it. A file
// at the default path, which the user has not named, must not be writable by other users of the machine
// either.
func (c *Config) CheckTrusted(file string, named bool) error {
	f, err := c.fileChecker(!named).open(file)
	if err != nil {
		return err
	}
	return f.Close()
}
