package sysinstall

import "testing"

func TestTriedSystem(t *testing.T) {
	for command, want := range map[string]bool{
		"apt-get install -y jq": true,
		"apt install jq":        true,
		"sudo apt-get -qq update && sudo apt-get install -y jq": true,
		"DEBIAN_FRONTEND=noninteractive apt-get -y install jq":  true,
		"cd /tmp; apt-get update":                               true,
		"which jq || apt-get install -y jq":                     true,
		"set -e\n  apt-get update\n":                            true,
		"if true; then yum install -y jq; fi":                   true,
		"/usr/bin/apt-get install jq":                           true,
		"dnf -y install jq":                                     true,
		"apk add --no-cache jq":                                 true,
		"dpkg -i x.deb":                                         true,
		"sudo dpkg --install x.deb":                             true,
		"rpm -Uvh x.rpm":                                        true,
		"pacman -Syu jq":                                        true,
		"apt install ./x.deb":                                   true,
		"dpkg -l | grep jq":                                     false,
		"apt-cache search jq":                                   false,
		"apt list --installed":                                  false,
		"rpm -qa":                                               false,
		"apt-get --version":                                     false,
		"pip install apt":                                       false,
		"echo 'RUN apt-get install -y jq' > Dockerfile":         false,
		"grep -rn 'apt-get install' .":                          false,
		"git commit -m 'explain apt-get install'":               false,
		"npm install dpkg":                                      false,
	} {
		if got := Tried(command); got != want {
			t.Errorf("%q: %t", command, got)
		}
	}
	for output, want := range map[string]bool{
		"E: Could not open lock file /var/lib/dpkg/lock-frontend - open (2: No such file or directory)": true,
		"sh: 1: apk: not found":                      true,
		"bash: line 1: yum: command not found":       true,
		"E: Unable to locate package jq":             true,
		"dpkg: error: cannot access archive 'x.deb'": true,
		"jq: command not found":                      false,
		"all is well":                                false,
	} {
		if got := Tried("./setup.sh", "", output); got != want {
			t.Errorf("%q: %t", output, got)
		}
	}
}

// TestNotPermitted: what programs say that may not change an owner or their user, and what only looks like it.
func TestNotPermitted(t *testing.T) {
	for output, want := range map[string]bool{
		"chown: changing ownership of 'f': Operation not permitted":                                true,
		"x\ntar: d/f: Cannot change ownership to uid 1001, gid 127: Operation not permitted\nmore": true,
		"cp: failed to preserve ownership for 'b': Operation not permitted":                        true,
		"rsync: [generator] chown \"/w/f\" failed: Operation not permitted (1)":                    true,
		"su: cannot set groups: Operation not permitted":                                           true,
		"setpriv: setresuid failed: Operation not permitted":                                       true,
		"error: failed switching to \"postgres\": operation not permitted":                         true,
		"initdb: error: cannot be run as root":                                                     true,
		"mount: /mnt: permission denied.":                                                          false,
		"kill: (1): Operation not permitted":                                                       false,
		"he said chown: changing ownership of 'f': Operation not permitted":                        false,
	} {
		if got := NotPermitted("", output); (got != "") != want {
			t.Errorf("%q: %q", output, got)
		}
	}
}
