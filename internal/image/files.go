package image

import "sandlot/internal/agent/wire"

// OwnFiles returns the files that each sandbox has instead of its image's, by path, without a leading slash.
func OwnFiles() map[string]string {
	return map[string]string{
		"etc/resolv.conf": wire.ResolvConf,
		"etc/hosts":       "127.0.0.1 localhost sandbox\n::1 localhost\n",
		"etc/hostname":    "sandbox\n",
	}
}

// BaseFiles returns the files that programs expect in every root file system, where no image has them.
func BaseFiles() map[string]string {
	return map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/bash\n" +
			"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"etc/group": "root:x:0:\nnogroup:x:65534:\n",
		// For su and runuser: nobody has a password here, and a set-user-ID bit gives nothing.
		"etc/pam.d/other": "auth required pam_permit.so\naccount required pam_permit.so\n" +
			"password required pam_permit.so\nsession required pam_permit.so\n",
		"etc/sudoers":       "root ALL=(ALL:ALL) ALL\n",
		"etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
	}
}
