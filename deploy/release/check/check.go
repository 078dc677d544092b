// Package check has the tests of a release that was made: its files, and that they install and run. `make release` runs
// them for dist/release.
package check
