package rpc

import (
	"encoding/json"
)

// Page is one page of a list: the SDK's result without its items, and the items as their
// servers gave them. The items were checked before, and are not read again.
type Page struct {
	*Raw
	Field string
	Items []json.RawMessage
}

// Method is the method of the list.
func (p *Page) Method() string {
	if p.Field == "resourceTemplates" {
		return "resources/templates/list"
	}
	return p.Field + "/list"
}

// Size is about the size of the page in bytes.
func (p *Page) Size() (n int) {
	for _, i := range p.Items {
		n += len(i) + 1
	}
	return n
}

// MarshalJSON implements json.Marshaler.
func (p *Page) MarshalJSON() ([]byte, error) {
	head, err := p.Raw.MarshalJSON()
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
