package mcpclient

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"sandlot/internal/rawjson"
)

const (
	maxPages  = 1000
	maxCursor = 64 << 10
)

// List calls a method that lists ("tools/list"), page after page, and returns
// what stands in the field ("tools") of all of them. More than most items, more
// than Options.MaxList bytes or 1000 pages, or a page that comes again, is an
// error; what came so far is returned with it.
func (s *Session) List(ctx context.Context, method, field string, most int) ([]json.RawMessage, error) {
	var all []json.RawMessage
	params, seen := rawjson.Object{}, map[string]bool{}
	left := room{most, s.options.MaxList}
	for range maxPages {
		var room Room = noRoom{}
		raw, err := s.Call(ctx, Request{Method: method, Params: params, Held: func(r Room) { room = r }})
		if err != nil {
			return all, err
		}
		items, cursor, err := page(raw, field, left)
		room.Release()
		all = append(all, items...)
		if err != nil {
			return all, fmt.Errorf("%s: %w", method, err)
		}
		left.items -= len(items)
		left.bytes -= len(raw) // what is thrown away was sent too
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
	return all, fmt.Errorf("%w: %s has over %d pages", ErrTooLarge, method, maxPages)
}

// room is what may still come of a list.
type room struct{ items, bytes int }

var errListBytes = fmt.Errorf("%w: the list has more bytes than there is room for", ErrTooLarge)

// page reads one page without taking more of it apart than it must: a page of
// 16 MiB can have millions of items.
func page(raw json.RawMessage, field string, left room) (items []json.RawMessage, cursor string, err error) {
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

func array(d *json.Decoder, items []json.RawMessage, left room) ([]json.RawMessage, error) {
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
			return items, fmt.Errorf("%w: the list has more items than the %d that there is room for", ErrTooLarge,
				left.items)
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

// SetLevel sets from which level on the server sends log messages. In the newer
// era each later request says it.
func (s *Session) SetLevel(ctx context.Context, level string) error {
	if !s.stateless() {
		_, err := s.Call(ctx, Request{Method: "logging/setLevel", Params: rawjson.Object{"level": rawjson.Quote(level)}})
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.level = level
	return nil
}
