package rpc

import (
	"encoding/json"
)

// Page is the result of a request for a list: the SDK's result without the items, and the
// complete definitions as items. Field is the name of the list in the result. The items are
// valid JSON, and are not parsed again.
type Page struct {
	*RawResult
	Field string
	Items []json.RawMessage
}

// Method returns the method that requests the list.
func (p *Page) Method() string {
	if p.Field == "resourceTemplates" {
		return "resources/templates/list"
	}
	return p.Field + "/list"
}

// Size returns about the size of the page in bytes.
func (p *Page) Size() (n int) {
	for _, i := range p.Items {
		n += len(i) + 1
	}
	return n
}

// MarshalJSON implements json.Marshaler.
func (p *Page) MarshalJSON() ([]byte, error) {
	head, err := p.RawResult.MarshalJSON()
	if err != nil {
		return nil, err
	}
	b := make([]byte, 0, len(head)+len(p.Field)+8+p.Size())
	b = append(b, head[:len(head)-1]...)
	if len(b) > 1 {
		b = append(b, ',')
	}
	b = append(append(append(b, '"'), p.Field...), `":[`...)
	for n, i := range p.Items {
		if n > 0 {
			b = append(b, ',')
		}
		b = append(b, i...)
	}
	return append(b, "]}"...), nil
}
