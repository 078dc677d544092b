package hub

import (
	"context"

	"sandlot/internal/auth"
	"sandlot/internal/checkup"
	"sandlot/internal/fault"
)

// DoctorReport is what the checks of the server's machine have found.
type DoctorReport = checkup.Report

var errNoDoctor = fault.New(fault.NotFound, "this server makes no checks on request").
	Advise("Run `sandlot doctor` on the server's machine")

// runDoctor checks the server's machine, as `sandlot doctor` does, and waits for the report. One checkup runs at a time.
func (h *Hub) runDoctor(ctx context.Context, p auth.Principal, _ None) (DoctorReport, error) {
	if h.Doctor == nil {
		return DoctorReport{}, errNoDoctor
	}
	h.Log.InfoContext(ctx, "the machine is checked", "by", p.ID)
	return h.Doctor.Run(ctx)
}

// readDoctor returns the report of the checkup that runs, or of the last one.
func (h *Hub) readDoctor(context.Context, auth.Principal, None) (DoctorReport, error) {
	if h.Doctor == nil {
		return DoctorReport{}, errNoDoctor
	}
	return h.Doctor.Last(), nil
}
