package fileacl

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// What an access right allows, of those that matter here.
const (
	generic = windows.GENERIC_ALL | windows.MAXIMUM_ALLOWED
	seize   = windows.DELETE | windows.WRITE_DAC | windows.WRITE_OWNER
	// deleteChild is FILE_DELETE_CHILD: removing and renaming what is in a folder.
	deleteChild = 0x40

	// Read is reading a file.
	Read = windows.FILE_READ_DATA | windows.GENERIC_READ | generic | windows.WRITE_DAC | windows.WRITE_OWNER
	// Write is changing, replacing or removing a file.
	Write = windows.FILE_WRITE_DATA | windows.FILE_APPEND_DATA | windows.GENERIC_WRITE | generic | seize
	// Replace is moving or replacing what is in a folder, or the folder itself.
	Replace = deleteChild | generic | seize
)

// inheritOnly is the flag of an entry that counts for what is in the folder, and not for the folder.
const inheritOnly = 0x8

// allowedType is the type of an entry that allows something (ACCESS_ALLOWED_ACE_TYPE). Those that deny something, and
// so could only take away from these, are left out.
const allowedType = 0

// Others returns the name of a user or a group, besides this user, the administrators and the system, who may do one
// of the rights with the file; "": there is none.
func Others(path string, rights uint32) (string, error) {
	sd, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT,
		windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return "", fmt.Errorf("the access rights of %s: %w", path, err)
	}
	trusted, err := trustedUsers()
	if err != nil {
		return "", err
	}
	owner, _, err := sd.Owner()
	if err != nil {
		return "", err
	}
	if !isAmong(trusted, owner) { // an owner may change the rights
		return name(owner), nil
	}
	dacl, _, err := sd.DACL()
	if err != nil {
		return "", err
	}
	if dacl == nil {
		return "everyone", nil
	}
	for i := range uint32(dacl.AceCount) {
		var entry *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(dacl, i, &entry); err != nil {
			return "", err
		}
		if entry.Header.AceType != allowedType || entry.Header.AceFlags&inheritOnly != 0 ||
			uint32(entry.Mask)&rights == 0 {
			continue
		}
		if who := (*windows.SID)(unsafe.Pointer(&entry.SidStart)); !isAmong(trusted, who) {
			return name(who), nil
		}
	}
	return "", nil
}

// Stranger returns the name of the owner of a file or a pipe, if that is not this user, the administrators or the
// system; "": it is one of them.
func Stranger(path string) (string, error) {
	sd, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return "", fmt.Errorf("the owner of %s: %w", path, err)
	}
	trusted, err := trustedUsers()
	if err != nil {
		return "", err
	}
	owner, _, err := sd.Owner()
	if err != nil || isAmong(trusted, owner) {
		return "", err
	}
	return name(owner), nil
}

// trustedUsers are those who may do everything here: this user, the administrators, the system, and the service that
// installs it, which owns the system's folders.
func trustedUsers() ([]*windows.SID, error) {
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return nil, err
	}
	all := []*windows.SID{user.User.Sid}
	for _, kind := range []windows.WELL_KNOWN_SID_TYPE{windows.WinLocalSystemSid, windows.WinBuiltinAdministratorsSid} {
		sid, err := windows.CreateWellKnownSid(kind)
		if err != nil {
			return nil, err
		}
		all = append(all, sid)
	}
	installer, err := windows.StringToSid(
		"S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464")
	return append(all, installer), err
}

func isAmong(all []*windows.SID, who *windows.SID) bool {
	for _, sid := range all {
		if sid.Equals(who) {
			return true
		}
	}
	return false
}

func name(sid *windows.SID) string {
	if account, domain, _, err := sid.LookupAccount(""); err == nil && account != "" {
		if domain != "" {
			return domain + `\` + account
		}
		return account
	}
	return sid.String()
}
