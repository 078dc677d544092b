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
func (s *Session) List(ctx context.Context, method, field string, most int) ([]json.RawMessage, error) {
	var all []json.RawMessage
	params, seen := rawjson.Object{}, map[string]bool{}
	left := bounds{most, s.options.MaxList}
	for range maxPages {
		var held transport.Reservation
		raw, err := s.Call(ctx, Request{Method: method, Params: params,
			Held: func(r transport.Reservation) { held = r }})
		if err != nil {
			return all, err
		}
		items, cursor, err := page(raw, field, left)
		held.Release()
		all = append(all, items...)
		if err != nil {
			return all, fmt.Errorf("%s: %w", method, err)
		}
		left.items -= len(items)
		left.bytes -= len(raw) // the bytes around the items count too
		switch {
		case cursor == "":
			return all, nil
		case seen[cursor]:
			return all, fmt.Errorf("%s: the server gives the same page again and again", method)
		case left.bytes <= 0:
			return all, fmt.Errorf("%s: %w", method, errListBytes)
		}
		seen[cursor] = true
		params = rawjson.Object{"cursor": rawjson.Quote(cursor)}
	}
	return all, fmt.Errorf("%w: %s has over %d pages", transport.ErrTooLarge, method, maxPages)
}

// bounds is how much of a list may still be read.
type bounds struct{ items, bytes int }

var errListBytes = fmt.Errorf("%w: the list has more bytes than there is room for", transport.ErrTooLarge)

// page reads one page. It decodes item by item and stops at the limits: a page of 16 MiB
// can have millions of items.
func page(raw json.RawMessage, field string, left bounds) (items []json.RawMessage, cursor string, err error) {
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
			items, err = array(d, items, left)
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

func array(d *json.Decoder, items []json.RawMessage, left bounds) ([]json.RawMessage, error) {
	open, err := d.Token()
	if err != nil {
		return items, err
	}
	if open == nil {
		return items, nil // null
	}
	if open != json.Delim('[') {
		return items, fmt.Errorf("the server's list is not an array")
	}
	for d.More() {
		if len(items) >= left.items {
			return items, fmt.Errorf("%w: the list has more items than the %d that there is room for",
				transport.ErrTooLarge, left.items)
		}
		var item json.RawMessage
		if err := d.Decode(&item); err != nil {
			return items, err
		}
		if left.bytes -= len(item); left.bytes < 0 {
			return items, errListBytes
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

// send makes a call with one string parameter, and ignores the result.
func (s *Session) send(ctx context.Context, method, name, text string) error {
	_, err := s.Call(ctx, Request{Method: method, Params: rawjson.Object{name: rawjson.Quote(text)}})
	return err
}

// SetLevel sets the lowest level of the log messages that the server sends. In the
// stateless protocol the level is sent with each later request.
func (s *Session) SetLevel(ctx context.Context, level string) error {
	if !s.Stateless() {
		return s.send(ctx, "logging/setLevel", "level", level)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.level = level
	return nil
}
