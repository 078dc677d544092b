package vault

import (
	"encoding/json"
	"errors"

	"sandlot/internal/fault"
)

// variablesAdditionalData returns the additional data of a session's sealed variables. Neither an owner nor a session
// can contain a NUL.
func variablesAdditionalData(owner, session string) []byte {
	return []byte("sandlot variables\x00" + owner + "\x00" + session)
}

// SealVariables seals the variables of a session. References to secrets in them stay references.
func (v *Vault) SealVariables(owner, session string, env map[string]string) ([]byte, error) {
	k, err := v.key(v.CreateKey)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(env)
	if err != nil {
		return nil, err
	}
	return k.Seal(nil, nil, text, variablesAdditionalData(owner, session)), nil
}

// OpenVariables returns the variables of a session.
func (v *Vault) OpenVariables(owner, session string, sealed []byte) (env map[string]string, err error) {
	text, lost, err := v.decrypt(sealed, variablesAdditionalData(owner, session))
	if err == nil && json.Unmarshal([]byte(text.Reveal()), &env) != nil {
		lost, err = true, errors.New("they are no JSON") // without the text
	}
	if !lost {
		return env, err
	}
	return nil, fault.Wrap(fault.Configuration, err, "the variables of the session cannot be read any more (their key "+
		"is gone, or the stored data was changed): nothing starts in it without them").With("session_id", session).
		Advise("Create a new session with the variables; files of this one can still be read")
}
