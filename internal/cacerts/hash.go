package cacerts

import (
	"crypto/sha1"
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf16"
)

// hashedNames returns the certificates by the names under which OpenSSL looks for them in a
// folder: a hash of the subject, and a number that distinguishes certificates with the same
// hash.
func hashedNames(certs []*x509.Certificate) map[string]*x509.Certificate {
	names := make(map[string]*x509.Certificate, len(certs))
	for _, c := range certs {
		h, err := subjectHash(c.RawSubject)
		if err != nil {
			continue // the files with all certificates still have it
		}
		n := 0
		for names[fmt.Sprintf("%08x.%d", h, n)] != nil {
			n++
		}
		names[fmt.Sprintf("%08x.%d", h, n)] = c
	}
	return names
}

var hashedName = regexp.MustCompile(`/[0-9a-f]{8}\.[0-9]+$`)

// IsHashedName reports whether a path is that of a certificate under a name by which OpenSSL looks for it.
func IsHashedName(path string) bool { return hashedName.MatchString(path) }

type attribute struct {
	Type  asn1.ObjectIdentifier
	Value asn1.RawValue
}

// subjectHash is OpenSSL's X509_NAME_hash: the first four bytes, as a little-endian number, of
// the SHA-1 of the name in canonical form. That form is the concatenation of the name's sets,
// without the sequence around them, with each string made canonical.
func subjectHash(raw []byte) (uint32, error) {
	var name []asn1.RawValue
	if rest, err := asn1.Unmarshal(raw, &name); err != nil || len(rest) > 0 {
		return 0, fmt.Errorf("not a name: %w", err)
	}
	h := sha1.New()
	for _, set := range name {
		var attributes []attribute
		if _, err := asn1.UnmarshalWithParams(set.FullBytes, &attributes, "set"); err != nil {
			return 0, err
		}
		for i, a := range attributes {
			attributes[i].Value = canonical(a.Value)
		}
		out, err := asn1.MarshalWithParams(attributes, "set")
		if err != nil {
			return 0, err
		}
		h.Write(out)
	}
	return binary.LittleEndian.Uint32(h.Sum(nil)), nil
}

// canonical converts a string to UTF-8, its ASCII letters to lower case, trims white space
// and collapses it within the string. Values that are not strings stay as they are.
func canonical(v asn1.RawValue) asn1.RawValue {
	s, ok := stringValue(v)
	if !ok {
		return asn1.RawValue{FullBytes: v.FullBytes}
	}
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(" \t\n\v\f\r", r) }), " ")
	s = strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
	return asn1.RawValue{Tag: asn1.TagUTF8String, Bytes: []byte(s)}
}

// stringValue decodes the ASN.1 types that OpenSSL treats as strings.
func stringValue(v asn1.RawValue) (string, bool) {
	const tagVisibleString, tagUniversalString = 26, 28
	if v.Class != asn1.ClassUniversal {
		return "", false
	}
	switch b := v.Bytes; v.Tag {
	case asn1.TagUTF8String:
		return string(b), true
	case asn1.TagPrintableString, asn1.TagT61String, asn1.TagIA5String, tagVisibleString:
		latin1 := make([]rune, len(b))
		for i, c := range b {
			latin1[i] = rune(c)
		}
		return string(latin1), true
	case asn1.TagBMPString:
		units := make([]uint16, len(b)/2)
		_, err := binary.Decode(b, binary.BigEndian, units)
		return string(utf16.Decode(units)), err == nil && len(b)%2 == 0
	case tagUniversalString:
		runes := make([]rune, len(b)/4)
		_, err := binary.Decode(b, binary.BigEndian, runes)
		return string(runes), err == nil && len(b)%4 == 0
	}
	return "", false
}
