package builtin

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"sandlot/internal/auth"
	"sandlot/internal/builtin/definition"
	"sandlot/internal/image"
	"sandlot/internal/once"
	"sandlot/internal/policy"
	"sandlot/internal/port"
	"sandlot/internal/tool"
)

// New returns the tools that c allows.
func New(c Config) *Tools {
	if c.Templates == nil {
		c.Templates = func() []*image.Template { return nil }
	}
	t := &Tools{Config: c, byName: map[string]tool.Callable{},
		replies: once.New(once.Config[reply]{TokenContext: c.TokenContext, Size: reply.size})}
	t.SetConsent(c.Consent)
	add[CodeResult](t, policy.CodeExecute, "execute_code", t.executeCode)
	add[CommandResult](t, policy.ShellExecute, "execute_command", t.executeCommand)
	add[FileRead](t, policy.FileRead, "sandbox_read_file", t.readFile)
	add[FileWritten](t, policy.FileWrite, "sandbox_write_file", t.writeFile)
	add[FileEdited](t, policy.FileWrite, "sandbox_edit_file", t.editFile)
	add[FileList](t, policy.FileList, "sandbox_list_files", t.listFiles)
	add[ProcessList](t, policy.ProcessList, "list_processes", t.listProcesses)
	add[ProcessOutput](t, policy.ProcessRead, "read_process", t.readProcess)
	add[ProcessInput](t, policy.ProcessWrite, "write_process", t.writeProcess)
	add[ProcessEnd](t, policy.ProcessStop, "stop_process", t.stopProcess)
	add[Exposed](t, policy.PortExpose, "expose_port", t.exposePort)
	add[Closed](t, policy.PortClose, "close_port", t.closePort)
	add[SessionList](t, policy.SessionList, "get_sessions", t.getSessions)
	add[SessionEnd](t, policy.SessionStop, "stop_session", t.stopSession)
	add[SessionResumed](t, policy.SessionResume, "resume_session", t.resumeSession)
	add[Snapshot](t, policy.SnapshotCreate, "snapshot_session", t.snapshotSession)
	add[SnapshotList](t, policy.SnapshotList, "list_snapshots", t.listSnapshots)
	add[SnapshotRestored](t, policy.SnapshotRestore, "restore_snapshot", t.restoreSnapshot)
	add[SnapshotName](t, policy.SnapshotRemove, "remove_snapshot", t.removeSnapshot)
	add[Forked](t, policy.SessionFork, "fork_session", t.forkSession)
	add[VolumeList](t, policy.VolumeList, "get_volume_path", t.getVolumePath)
	if c.Connections != nil {
		add[ShellResult](t, policy.ShellExecute, "sandbox_shell_exec", t.shellExec)
		add[Connected](t, policy.MCPConnect, "connect_external_mcp", declineAsResult(t.connectExternal))
		add[Connected](t, policy.MCPInstall, "auto_install_and_connect_mcp", declineAsResult(t.installExternal))
		add[ServerList](t, policy.MCPList, "list_external_mcp", t.listExternal)
		add[Disconnected](t, policy.MCPDisconnect, "disconnect_external_mcp", t.disconnectExternal)
		add[Connected](t, policy.MCPRestart, "restart_external_mcp", declineAsResult(t.restartExternal))
		if c.Registries != nil {
			add[FoundServers](t, policy.RegistrySearch, "search_servers", t.searchServers)
		}
		add[ServerLog](t, policy.MCPLogs, "external_mcp_logs", t.externalLogs)
	}
	add[VolumeList](t, policy.VolumeList, "get_volume_mappings", t.getVolumePath)
	t.Refresh()
	return t
}

// A kind is a tool without its description.
type kind struct {
	name     string
	describe func(definition.Definition) tool.Tool
}

// descriptions are the tools as clients see them. They are made when they are first used, as that takes time.
type descriptions struct {
	byName map[string]func() tool.Tool
	// list is what is listed, and connected what is listed for who has tools of third-party servers.
	list, connected func() []tool.Tool
}

// Refresh makes the tools' descriptions again, after the templates have changed.
func (t *Tools) Refresh() {
	definitions := sync.OnceValue(t.definitions)
	d := &descriptions{byName: map[string]func() tool.Tool{}}
	for _, k := range t.kinds {
		d.byName[k.name] = sync.OnceValue(func() tool.Tool { return k.describe(definitions()[k.name]) })
	}
	d.list = sync.OnceValue(func() (all []tool.Tool) {
		for _, k := range t.kinds {
			all = append(all, d.byName[k.name]())
		}
		return all
	})
	d.connected = sync.OnceValue(func() []tool.Tool {
		all := slices.Clone(d.list())
		for i := range all {
			all[i].Description += definitions()[all[i].Name].Connected
		}
		return all
	})
	t.current.Store(d)
}

// A handler runs the calls of a tool whose arguments are In.
type handler[In any] func(context.Context, tool.Call, In) (*tool.Result, error)

// add adds the tool of that name in tools.yaml, whose arguments are In and whose result has the fields
// Out. Policy sees its calls as operation o.
func add[Out, In any](t *Tools, o policy.Operation, name string, h handler[In]) {
	h = retryable(t.replies, namingSession(t, h))
	t.kinds = append(t.kinds, kind{name, func(d definition.Definition) tool.Tool {
		d.Name, d.Operation = name, o
		d.Input, d.Output = tool.InputOf[In](d.Arguments...), tool.OutputOf[Out](d.Required, d.Result...)
		return d.Tool
	}})
	var implies []policy.Operation
	if with, ok := any(*new(In)).(implying); ok {
		implies = with.implies()
	}
	// It is done for policy, where a rule has to know, and again to run: in between the call is the hub's, without types.
	decode := func(c tool.Call) (In, error) {
		in, err := tool.Decode[In](t.current.Load().byName[name](), c.Args)
		if with, ok := any(&in).(interface{ pin(id string) }); ok && c.Session != "" {
			with.pin(c.Session)
		}
		return in, err
	}
	t.byName[name] = tool.Callable{Operation: o, Implies: implies, DetailFollows: o == policy.CodeExecute,
		Consents: o == policy.MCPInstall || o == policy.MCPConnect,
		Detail: func(c tool.Call) (d tool.Detail, err error) {
			in, err := decode(c)
			if with, ok := any(in).(detailed); ok {
				d.Text = with.detail()
			}
			if with, ok := any(in).(targeted); ok && err == nil {
				with.target(t, c, &d)
			}
			return d, err
		}, Call: func(ctx context.Context, c tool.Call) (*tool.Result, error) {
			in, err := decode(c)
			if err != nil {
				return nil, err
			}
			r, err := h(ctx, c, in)
			if err == nil {
				once.Begun(ctx) // an answer for which there is no memory was made
				err = c.Reservation.CountAnswer(ctx, int64(r.Size()))
			}
			if err != nil {
				return nil, err
			}
			return r, nil
		}}
}

// detailed is an input with a detail for the patterns of rules.
type detailed interface{ detail() string }

// targeted is an input of calls that are for one session, or one third-party server. One that names a session has a method
// pin too: see tool.Call.Session.
type targeted interface {
	target(t *Tools, c tool.Call, d *tool.Detail)
}

// implying is an input whose calls may ask policy about other operations.
type implying interface{ implies() []policy.Operation }

// keyed is an input with an idempotency key; empty: the call has none.
type keyed interface{ key() string }

// retryable returns a handler that runs calls with the same idempotency key only once.
func retryable[In any](replies *once.Replies[reply], h handler[In]) handler[In] {
	if _, ok := any(*new(In)).(keyed); !ok {
		return h
	}
	return func(ctx context.Context, c tool.Call, in In) (*tool.Result, error) {
		key := any(in).(keyed).key()
		if key == "" {
			return h(ctx, c, in)
		}
		name := fmt.Sprintf("%s %+v", c.Name, c.Principal.Rights()) // a result is only for who may do the same
		input := append(slices.Clip(c.Args), c.Session...)          // a name may be another session's by now
		q := once.Request{Principal: c.Principal, Name: name, Input: input, Key: key, Hold: c.Door().Hold}
		ran := make(chan struct{}) // closed by the run
		r, err := replies.Do(ctx, q, func(ctx context.Context) (r reply, err error) {
			close(ran)
			ctx, r.trail = c.Door().Record(ctx)
			r.result, err = h(ctx, c, in)
			return r, err
		})
		select {
		case <-ran:
			return r.result, err
		default:
			return r.again(ctx, c.Principal, err)
		}
	}
}

// reply is a stored result, with what its call asked policy.
type reply struct {
	result *tool.Result
	trail  tool.Trail // nil: nothing ran
}

func (r reply) size() int {
	n := r.result.Size()
	if r.trail != nil {
		n += r.trail.Size()
	}
	return n
}

// again returns the result, or the error, for another call with the same key, as far as policy still allows all that
// the first one did.
func (r reply) again(ctx context.Context, p auth.Principal, err error) (*tool.Result, error) {
	if r.trail != nil {
		if err := r.trail.Recheck(ctx, p); err != nil {
			return nil, err
		}
	}
	if r.result == nil || err != nil {
		return nil, err
	}
	replayed := *r.result
	replayed.Replayed = true
	return &replayed, nil
}

// definitions returns what tools.yaml says of the tools, with the settings of this server in it.
func (t *Tools) definitions() map[string]definition.Definition {
	return definition.Read(definition.Settings{Languages: t.languages(), Templates: t.Templates(), Flavors: t.Flavors,
		Numbers: map[string]int{"timeout": int(t.Timeout.Seconds()), "max timeout": int(t.MaxTimeout.Seconds()),
			"file bytes": fileBytes, "process bytes": processBytes,
			"link lifetime":     int(port.DefaultLifetime.Seconds()),
			"max link lifetime": int(port.MaxLifetime.Seconds())}})
}
