package main

import (
	"errors"
	"fmt"
	"time"

	daywork "sandlot/test/tasks"
)

// mostPackages is how long the ready packages may take.
const mostPackages = 10 * time.Minute

// day measures what the tasks of an agent's working day cost: calls, tokens and time; with an earlier version beside it
// if there is one.
func day(b *bench) (section, error) {
	now, err := b.doTasks(b.bin, true)
	if err != nil {
		return section{}, err
	}
	head := []string{"task", "calls", "tokens", "time"}
	var then []done
	if b.before != "" {
		if then, err = b.doTasks(b.before, false); err != nil {
			return section{}, fmt.Errorf("the earlier version: %w", err)
		}
		head = append(head, "before: calls", "tokens", "time")
	}
	t := table{Head: head}
	for i, d := range now {
		row := append([]string{fmt.Sprintf("%d. %s", d.task.Number, d.task.Name)}, d.cells()...)
		if then != nil {
			row = append(row, then[i].cells()...)
		}
		t.row(row...)
	}
	return section{title: "A working day", method: "Tasks of an agent's day ([test/tasks](../test/tasks)), each done once, " +
		"in a session of its own, in the calls that a model would make, with a look at what came of it. Tokens are those " +
		"of all arguments and texts, in o200k_base. The ready packages, where a version has them, are there before; what a task installs comes from " +
		"the package registries, so its time is theirs. A call that fails, or an answer that is not what was asked for, " +
		"ends the task: \"not done\" after so many calls.", tables: []table{t}}, nil
}

// done is a task that was tried.
type done struct {
	task daywork.Task
	desk *daywork.Desk
	took time.Duration
}

func (d done) cells() []string {
	if d.desk.Err != nil {
		return []string{fmt.Sprintf("not done after %d", d.desk.Calls), fmt.Sprint(d.desk.Tokens), ""}
	}
	return []string{fmt.Sprint(d.desk.Calls), fmt.Sprint(d.desk.Tokens), show(d.took)}
}

// doTasks does all tasks with the programs of a folder. One that this version cannot do is an error.
func (b *bench) doTasks(bin string, all bool) (list []done, err error) {
	with := *b
	with.bin = bin
	err = with.with(func(s *server) error {
		c, err := s.connect(newer, "")
		if err != nil {
			return err
		}
		defer c.close()
		call := daywork.CallerOf(c.(*sdkClient).session)
		probe := daywork.Task{Do: func(d *daywork.Desk) { d.Shell("python3 -c 'import pandas' && which vitest", "") }}
		for end := time.Now().Add(mostPackages); all && daywork.Run(s.ctx, probe, call).Err != nil; time.Sleep(time.Second) {
			if time.Now().After(end) {
				return errors.New("the ready packages are not made")
			}
		}
		for _, t := range daywork.All {
			if t.Long && b.quick {
				continue
			}
			began := time.Now()
			d := daywork.Run(s.ctx, t, call)
			list = append(list, done{t, d, time.Since(began)})
			if d.Err != nil && all {
				return fmt.Errorf("task %d, %s: %w", t.Number, t.Name, d.Err)
			}
		}
		return nil
	}, append(daywork.Registries(), "SANDLOT_PACKAGES_PYTHON=", "SANDLOT_PACKAGES_NODE=", "SANDLOT_PACKAGES_GO=")...)
	return list, err
}
