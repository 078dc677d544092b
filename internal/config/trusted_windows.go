package config

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"

	"sandlot/internal/fileacl"
)

const openFlags = os.O_RDONLY

// resolve resolves the links of a path, and checks each folder on the way.
func (t *fileChecker) resolve(abs string) (string, os.FileInfo, error) {
	resolved, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return "", nil, err
	}
	for _, path := range []string{abs, resolved} { // who can replace a link can replace the file
		for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
			if err := t.checkFolder(dir); err != nil {
				return "", nil, err
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	st, err := os.Lstat(resolved)
	return resolved, st, err
}

// privateFolder reports whether nobody besides the server's user and the administrators can move what is in a folder;
// else who.
func (t *fileChecker) privateFolder(path string, _ os.FileInfo) (reason string, private bool) {
	return answer(fileacl.Others(path, fileacl.Replace))
}

// privateFile reports whether nobody besides the server's user and the administrators can write a file; else who.
func (t *fileChecker) privateFile(path string, _ os.FileInfo) (reason string, private bool) {
	return answer(fileacl.Others(path, fileacl.Write))
}

// answer is the answer of both.
func answer(other string, err error) (reason string, private bool) {
	if err != nil {
		return err.Error(), false
	}
	return other, other == ""
}

// hasSecondName reports whether a file has another name, a hard link.
func hasSecondName(path string, _ os.FileInfo) bool {
	f, err := os.Open(path)
	if err != nil {
		return true
	}
	defer f.Close()
	var info windows.ByHandleFileInformation
	return windows.GetFileInformationByHandle(windows.Handle(f.Fd()), &info) != nil || info.NumberOfLinks > 1
}

// isServersFile reports whether a settings file belongs to the server's user or the administrators, and nobody else can
// write it.
func isServersFile(path string, _ os.FileInfo) bool {
	other, err := fileacl.Others(path, fileacl.Write)
	return err == nil && other == ""
}
