package mcpclient

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/rawjson"
)

const (
	maxPages  = 1000
	maxCursor = 64 << 10
)

// List calls a list method ("tools/list") for page after page, and returns the items of
// all pages; field is the member of the result that has them ("tools"). It is an error
// if there are more than maxItems items, Options.MaxList bytes or 1000 pages, or if the
// server repeats a cursor; the items read so far are returned with the error.
func (s *Session) List(ctx context.Context, method, field string, maxItems int) ([]json.RawMessage, error) {
	var all []json.RawMessage
	params, seen := rawjson.Object{}, map[string]bool{}
	remaining := listBudget{maxItems, s.options.MaxList}
	for range maxPages {
		var reservation transport.Reservation
		raw, err := s.Call(ctx, Request{Method: method, Params: params,
			TakeReservation: func(r transport.Reservation) { reservation = r }})
		if err != nil {
			return all, err
		}
		items, cursor, err := readPage(raw, field, remaining)
		reservation.Release()
		all = append(all, items...)
		if err != nil {
			return all, fmt.Errorf("%s: %w", method, err)
		}
		remaining.items -= len(items)
		remaining.bytes -= len(raw) // the bytes around the items count too
		switch {
		case cursor == "":
			return all, nil
		case seen[cursor]:
			return all, fmt.Errorf("%s: the server sends the same page again and again", method)
		case remaining.bytes <= 0:
			return all, fmt.Errorf("%s: %w", method, errListTooLarge)
		}
		seen[cursor] = true
		params = rawjson.Object{"cursor": rawjson.Quote(cursor)}
	}
	return all, fmt.Errorf("%w: %s has over %d pages", transport.ErrTooLarge, method, maxPages)
}

// listBudget is how much of a list may still be read.
type listBudget struct{ items, bytes int }

var errListTooLarge = fmt.Errorf("%w: the list has more bytes than the limit", transport.ErrTooLarge)

// readPage reads one page. It decodes item by item and stops at the limits: a page of 16 MiB
// can have millions of items.
func readPage(raw json.RawMessage, field string,
	remaining listBudget) (items []json.RawMessage, cursor string, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if _, err := d.Token(); err != nil {
		return nil, "", err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return items, "", err
		}
		switch key {
		case field:
			items, err = readItems(d, items, remaining)
		case "nextCursor":
			cursor, err = readCursor(d)
		default:
			var skipped json.RawMessage
			err = d.Decode(&skipped)
		}
		if err != nil {
			return items, "", err
		}
	}
	return items, cursor, nil
}

func readItems(d *json.Decoder, items []json.RawMessage, remaining listBudget) ([]json.RawMessage, error) {
	start, err := d.Token()
	if err != nil {
		return items, err
	}
	if start == nil {
		return items, nil // null
	}
	if start != json.Delim('[') {
		return items, fmt.Errorf("the server's list is not an array")
	}
	for d.More() {
		if len(items) >= remaining.items {
			return items, fmt.Errorf("%w: the list has more items than the limit of %d",
				transport.ErrTooLarge, remaining.items)
		}
		var item json.RawMessage
		if err := d.Decode(&item); err != nil {
			return items, err
		}
		if remaining.bytes -= len(item); remaining.bytes < 0 {
			return items, errListTooLarge
		}
		items = append(items, item)
	}
	_, err = d.Token()
	return items, err
}

func readCursor(d *json.Decoder) (string, error) {
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		return "", err
	}
	var cursor *string
	if len(raw) > maxCursor || json.Unmarshal(raw, &cursor) != nil {
		return "", fmt.Errorf("the server's nextCursor is not a string of at most %d bytes", maxCursor)
	}
	if cursor == nil {
		return "", nil
	}
	return *cursor, nil
}

// callWithString makes a call with one string parameter, and ignores the result.
func (s *Session) callWithString(ctx context.Context, method, name, text string) error {
	_, err := s.Call(ctx, Request{Method: method, Params: rawjson.Object{name: rawjson.Quote(text)}})
	return err
}

// SetLevel sets the lowest level of the log messages that the server sends. In the
// stateless protocol the level is sent with each later request.
func (s *Session) SetLevel(ctx context.Context, level string) error {
	if !s.Stateless() {
		return s.callWithString(ctx, "logging/setLevel", "level", level)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.level = level
	return nil
}
