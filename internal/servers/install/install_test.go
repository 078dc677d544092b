package install

import "testing"

// TestVariables: the variables of a server reach the commands that fetch and build, and no command before those, which
// could run what a variable names.
func TestVariables(t *testing.T) {
	for _, argv := range [][]string{makeVenvCommand("v"), checkFileCommand("0")} {
		if takesVariables(argv) {
			t.Errorf("%q gets them", argv)
		}
	}
	for _, argv := range [][]string{npmInstallCommand("f", "x"), pipCommand("v", "x"), uvCommand("v", "x"), cloneCommand("u", "", "r")} {
		if !takesVariables(argv) {
			t.Errorf("%q does not get them", argv)
		}
	}
}
