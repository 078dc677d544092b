package wire

// Reply is the reply of an interpreter's driver to a cell. It is sent as JSON.
type Reply struct {
	ID        int64   `json:"id"`
	OK        bool    `json:"ok"`
	Result    *string `json:"result"`
	Error     string  `json:"error"`
	Traceback string  `json:"traceback"`
	Exit      int32   `json:"exit"`
	Rich      []Rich  `json:"rich"`
	Stopped   bool    `json:"interrupted"`
	// RawFiles has, for a reply to the host, the paths of files with the bytes of stdout and
	// stderr; "" for a stream without terminal controls, which needs no file.
	RawFiles [2]string `json:"raw"`
	// Order is how the code has written to both streams: so many bytes to stdout, then so many to stderr, and so on in
	// turn; nil: to one of them, or the driver does not know.
	Order []int `json:"order"`
}

// Rich is a value in a form other than text, such as an image.
type Rich struct {
	MIME string `json:"mime"`
	Data []byte `json:"data"`
}

// Merge returns both streams in the order of Order; nil: that is not the order of these bytes, since other programs
// than the driver have written some of them.
func Merge(order []int, stdout, stderr []byte) []byte {
	rest := [2][]byte{stdout, stderr}
	merged := make([]byte, 0, len(stdout)+len(stderr))
	for i, n := range order {
		from := &rest[i%2]
		if n < 0 || n > len(*from) {
			return nil
		}
		merged = append(merged, (*from)[:n]...)
		*from = (*from)[n:]
	}
	if len(stdout) == 0 || len(stderr) == 0 || len(rest[0])+len(rest[1]) > 0 {
		return nil
	}
	return merged
}
