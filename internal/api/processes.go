package api

import (
	"fmt"
	"net/http"
	"strconv"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
)

// The header that says where the bytes of an output begin, and the trailer with the exit code.
const (
	outputBegins = "Sandlot-Output-Begins"
	exitCode     = "Sandlot-Exit-Code"
)

func processID(r *http.Request) hub.ProcessID {
	return hub.ProcessID{SessionID: hub.SessionID(r.PathValue("id")), Process: r.PathValue("process")}
}

// processOutput sends the output of a process as it comes, until the process ends. When bytes are lost that it had not
// sent yet, it cuts the connection: the client goes on where it was, and is told what is gone.
func (s *Server) processOutput(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
	q := hub.OutputQuery{ProcessID: processID(r)}
	if cursor := r.URL.Query().Get("cursor"); cursor != "" {
		var err error
		if q.Cursor, err = strconv.ParseInt(cursor, 10, 64); err != nil {
			return fault.Argument("cursor", "cursor must be a number of bytes")
		}
	}
	reader, err := s.Hub.ReadProcess(r.Context(), p, q)
	if err != nil {
		return err
	}
	defer reader.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox")
	h.Set("Content-Disposition", "attachment")
	h.Set("Trailer", exitCode)
	control, at := http.NewResponseController(w), int64(-1)
	for {
		out, err := reader.Next(r.Context())
		from := out.Cursor - int64(len(out.Bytes))
		switch {
		case err != nil && at < 0:
			return err
		case err != nil, at >= 0 && from != at:
			panic(http.ErrAbortHandler) // the client must notice that the output goes on
		case at < 0:
			h.Set(outputBegins, strconv.FormatInt(from, 10))
			w.WriteHeader(http.StatusOK)
		}
		at = out.Cursor
		if _, err := w.Write(out.Bytes); err != nil || control.Flush() != nil {
			return nil // the client is gone
		}
		if out.End != nil {
			if out.End.ExitCode != nil {
				h.Set(exitCode, fmt.Sprint(*out.End.ExitCode))
			}
			return nil
		}
	}
}

// The bodies of requests about processes.
type (
	processInputRequest struct {
		Data string `json:"data,omitempty" jsonschema:"What its standard input gets."`
		EOF  bool   `json:"eof,omitempty" jsonschema:"Whether the input ends after that."`
	}
	processSignalRequest struct {
		Signal string `json:"signal,omitempty" jsonschema:"Such as INT or KILL. Default: TERM, and KILL five seconds later."`
	}
)

func processInput(w http.ResponseWriter, r *http.Request) (hub.ProcessInput, error) {
	var q processInputRequest
	err := decode(w, r, 1<<20, &q, "data and eof")
	return hub.ProcessInput{ProcessID: processID(r), Data: q.Data, EOF: q.EOF}, err
}

func processSignal(w http.ResponseWriter, r *http.Request) (hub.ProcessSignal, error) {
	var q processSignalRequest
	err := decodeOptional(w, r, 64<<10, &q, "signal")
	if _, known := signals[q.Signal]; err == nil && q.Signal != "" && !known {
		err = fault.Argument("signal", "signal must be one of HUP, INT, QUIT, KILL, USR1, USR2, TERM, CONT and STOP")
	}
	return hub.ProcessSignal{ProcessID: processID(r), Signal: q.Signal}, err
}

var signals = map[string]bool{"HUP": true, "INT": true, "QUIT": true, "KILL": true, "USR1": true, "USR2": true,
	"TERM": true, "CONT": true, "STOP": true}
