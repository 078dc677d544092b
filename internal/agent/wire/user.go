package wire

import (
	"encoding/json"
	"fmt"
)

// User is the user of a sandbox, as the agent learns it when it starts. The zero User is root.
type User struct {
	UID    uint32   `json:"uid,omitempty"`
	GID    uint32   `json:"gid,omitempty"`
	Groups []uint32 `json:"groups,omitempty"`
	Name   string   `json:"name,omitempty"`
	Home   string   `json:"home,omitempty"`
	// Workdir is the folder where programs start; empty: the first file root.
	Workdir string `json:"workdir,omitempty"`
}

// String returns the user as the value of EnvUser.
func (u User) String() string {
	text, err := json.Marshal(u)
	if err != nil { // no field can cause that
		panic(err)
	}
	return string(text)
}

// ParseUser reads the value of EnvUser. An empty value is root.
func ParseUser(text string) (u User, err error) {
	if text == "" {
		return User{}, nil
	}
	if err := json.Unmarshal([]byte(text), &u); err != nil {
		return User{}, fmt.Errorf("%s: %w", EnvUser, err)
	}
	return u, nil
}
