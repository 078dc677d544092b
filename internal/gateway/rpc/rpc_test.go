package rpc

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"sandlot/internal/fault"
	"sandlot/internal/tool"
)

// A client cannot set Unambiguous: only a message that all decoders read in the same way is.
func TestRead(t *testing.T) {
	for body, plain := range map[string]bool{
		`{"jsonrpc":"2.0","id":1,"method":"ping"}`:                        true,
		`{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}`:            true,
		`{"jsonrpc":"2.0","id":1,"method":"ping","Plain":true}`:           false,
		`{"jsonrpc":"1.0","id":1,"method":"ping","plain":true}`:           false,
		`{"jsonrpc":"2.0","id":1,"method":"ping","method":"x"}`:           false,
		`{"jsonrpc":"2.0","id":1,"method":"ping","METHOD":"x"}`:           false,
		"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"p\xff\"}":             false,
		`[{"jsonrpc":"2.0","id":1,"method":"ping","plain":true}]`:         false,
		`{"jsonrpc":"2.0","id":1,"method":"ping","result":{},"plain":{}}`: false,
	} {
		if m := Read([]byte(body)); m.Unambiguous != plain {
			t.Errorf("%s: %+v", body, m)
		}
	}
}

// Errors of servers and the SDK stay unchanged, and a fault's message includes its advice.
func TestError(t *testing.T) {
	theirs := &tool.ExternalError{Code: -7, Message: "no", Data: json.RawMessage(`{"n":12345678901234567890}`)}
	sdk := &jsonrpc.Error{Code: -8, Message: "never"}
	own := fault.New(fault.NotFound, "no such thing")
	own.Advice = []string{"look again"}
	for _, tt := range []struct {
		err     error
		code    int64
		message string
	}{
		{theirs, -7, "no"}, {errors.Join(theirs), -7, "no"}, {sdk, -8, "never"},
		{own, int64(own.RPC()), own.Error() + ". look again"},
		{errors.New("x"), jsonrpc.CodeInternalError, "Internal error"},
	} {
		got := Error(tt.err)
		if got.Code != tt.code || len(got.Message) < len(tt.message) || got.Message[:len(tt.message)] != tt.message {
			t.Errorf("%v: %+v", tt.err, got)
		}
	}
	if got := Error(theirs); string(got.Data) != string(theirs.Data) {
		t.Errorf("its data: %s", got.Data)
	}
}
