package main

import (
	"errors"
	"fmt"
	"time"

	"sandlot/internal/runtime/docker/dockertest"
)

// imageTemplate is the template that SANDBOX_IMAGE makes.
const imageTemplate = "sandbox-image"

// dockerRuntime measures sandboxes that a Docker daemon makes, beside those of gVisor and Docker's own commands.
func dockerRuntime(b *bench) (sec section, err error) {
	err = b.withEngine(func(e *engine) error {
		return b.with(func(boxes *server) error {
			return b.with(func(boots *server) error {
				return b.with(func(gvisor *server) error {
					r := &rivals{bench: b, engine: e, boxes: boxes, boots: boots, gvisor: gvisor}
					if err := r.start(); err != nil {
						return err
					}
					sec = r.section()
					return nil
				})
			}, e.settings("SANDLOT_POOL_SIZE=0")...)
		}, e.settings()...)
	})
	return sec, err
}

// settings are those of a server whose sandboxes are the daemon's.
func (e *engine) settings(more ...string) []string {
	return append(more, "SANDLOT_RUNTIME=docker", "DOCKER_HOST="+e.Host, "SANDBOX_IMAGE="+dockertest.BaseImage)
}

// rivals are the compared ways to get 2 out of 1+1, and an empty sandbox out of nothing.
type rivals struct {
	*bench
	*engine
	boxes, boots, gvisor                    *server
	warmDocker, warmGVisor, exec, pool, new samples
	execNew                                 samples
}

func (r *rivals) start() (err error) {
	ours, theirs, fresh := r.boxes.bare(""), r.gvisor.bare(""), r.boots.bare("")
	defer ours.close()
	defer theirs.close()
	defer fresh.close()
	if err := r.awaitTemplate(); err != nil {
		return err
	}
	session, err := open(r.ctx, ours)
	if err != nil {
		return err
	}
	other, err := open(r.ctx, theirs)
	if err != nil {
		return err
	}
	id, err := r.docker(r.ctx, "run", "--detach", "--network", "none", dockertest.BaseImage, "sleep", "infinity")
	if err != nil {
		return err
	}
	const turn = 20
	for range pick(r.bench, 50, 3) {
		for range turn {
			err = errors.Join(
				r.warmDocker.take(func() error { return onePlusOne(r.ctx, ours, session) }),
				r.warmGVisor.take(func() error { return onePlusOne(r.ctx, theirs, other) }))
			if err != nil {
				return err
			}
		}
		err = r.exec.take(func() error { return r.answers("exec", id, "python3", "-c", "print(1+1)") })
		if err != nil {
			return err
		}
	}
	for range pick(r.bench, 50, 3) {
		err := r.boxes.waitPool(imageTemplate, poolSize)
		if err == nil {
			err = newSession(r.ctx, ours, &r.pool)
		}
		if err == nil {
			err = newSession(r.ctx, fresh, &r.new)
		}
		if err == nil {
			err = r.execNew.take(func() error {
				return r.answers("run", "--rm", "--network", "none", dockertest.BaseImage, "python3", "-c",
					"print(1+1)")
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// answers runs a command of Docker, whose program prints 2.
func (r *rivals) answers(args ...string) error {
	out, err := r.docker(r.ctx, args...)
	if err == nil && out != "2" {
		err = fmt.Errorf("docker %q printed %q", args, out)
	}
	return err
}

// awaitTemplate waits until both servers have the image, and their first sandboxes.
func (r *rivals) awaitTemplate() error {
	c := r.boots.bare("")
	defer c.close()
	var err error
	for range 60 {
		var session string
		if session, err = open(r.ctx, c); err == nil {
			return errors.Join(discard(r.ctx, c, session), r.boxes.waitPool(imageTemplate, poolSize))
		}
		time.Sleep(time.Second)
	}
	return err
}

func (r *rivals) section() section {
	warm, fresh := timings("1+1 in a session that exists"), timings("a new session's first answer")
	warm.add("bare call, sandbox of Docker", r.warmDocker,
		verdict("P50 below gVisor's", r.warmDocker.p(50) < r.warmGVisor.p(50)))
	warm.add("bare call, sandbox of gVisor", r.warmGVisor)
	warm.add("`docker exec` of `python3 -c 'print(1+1)'` in a running container", r.exec)
	fresh.add("bare call, sandbox from the pool", r.pool, r.pool.against(goal{50, 10 * time.Millisecond}))
	fresh.add("bare call, without a pool", r.new)
	fresh.add("`docker run --rm` of `python3 -c 'print(1+1)'`", r.execNew)
	times := ratio(r.exec, r.warmDocker, 50)
	return section{title: "Docker",
		method: "Sandboxes of a Docker daemon that was started for this run, with default settings of Sandlot and " +
			"the " +
			"template that `SANDBOX_IMAGE` makes, of a small Debian with Python. " +
			"First a warm `1+1` in turns: 20 calls on Docker and gVisor (template `host`), then one `docker exec`. " +
			"Then new sessions, as in \"A new session from the pool\".",
		tables: []table{warm, fresh},
		notes: []string{fmt.Sprintf("At P50 a warm call on Docker is %.0f times faster than `docker exec`. Goal: %s.",
			times, verdict(fmt.Sprintf("at least %d times", timesFaster), times >= timesFaster))}}
}
