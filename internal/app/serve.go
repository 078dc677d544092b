package app

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"time"

	"sandlot/internal/checkup"
	"sandlot/internal/config"
)

// restartGrace is how long running calls may take to end when the server restarts within its process.
const restartGrace = 5 * time.Second

// Serve runs a server until ctx ends. When a backup is restored, it closes the server and makes a new one within this
// process, whose lock of the state folder stays. opened is called each time when the server listens.
func Serve(ctx context.Context, c *config.Config, log *slog.Logger, opened func(a *App, at net.Addr)) error {
	lock, err := lockStateFolder(&c.Server)
	if err != nil {
		return err
	}
	defer lock.Close()
	var sockets []*os.File // of the network, which listen while there is no server
	for {
		var again bool
		again, sockets, err = serveOnce(ctx, c, log, opened, sockets)
		if !again {
			closeFiles(sockets)
			return err
		}
	}
}

// OfferCheckups lets operators ask the server to check its machine. It is called before Run.
func (a *App) OfferCheckups(examine func(ctx context.Context, report func(checkup.Check))) {
	all := &checkup.Checkups{Examine: examine, Stops: a.hub.Stopping()}
	a.closing.add(func() error { all.Close(); return nil })
	a.hub.Doctor = all
}

// serveOnce runs one server. again: another one is to follow, on these sockets.
func serveOnce(ctx context.Context, c *config.Config, log *slog.Logger, opened func(*App, net.Addr),
	sockets []*os.File) (again bool, kept []*os.File, err error) {
	a, network, owner, err := listening(ctx, c, log, sockets)
	if err != nil {
		undone, undoErr := restoresOf(c, log).Undo(ctx, err)
		if undone && undoErr == nil {
			return true, sockets, nil
		}
		return false, sockets, errors.Join(err, undoErr)
	}
	closeFiles(sockets)
	opened(a, network[0].Addr())
	err = a.Run(ctx, network, owner, Grace)
	again = err == nil && a.restarting && ctx.Err() == nil
	if err == nil && !again { // else the database, say, may be another server's by now
		a.Rest()
	}
	err = errors.Join(err, a.Close())
	return again && err == nil, a.sockets, err
}

// listening makes a server that listens.
func listening(ctx context.Context, c *config.Config, log *slog.Logger, sockets []*os.File) (a *App,
	network []net.Listener, owner net.Listener, err error) {
	if a, err = open(ctx, c, log); err != nil {
		return nil, nil, nil, err
	}
	a.restart = make(chan struct{}, 1)
	if network, owner, err = a.listen(ctx, sockets); err != nil {
		return nil, nil, nil, errors.Join(err, a.Close())
	}
	return a, network, owner, nil
}

// keepSockets makes sockets listen after their listeners are closed, until they are closed themselves: clients that
// connect meanwhile wait. Where it cannot be done, there are none.
func keepSockets(listeners []net.Listener) (sockets []*os.File) {
	for _, l := range listeners {
		tcp, ok := l.(*net.TCPListener)
		if !ok {
			continue
		}
		f, err := tcp.File()
		if err != nil {
			closeFiles(sockets)
			return nil
		}
		sockets = append(sockets, f)
	}
	return sockets
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
