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
}

// Rich is a value in a form other than text, such as an image.
type Rich struct {
	MIME string `json:"mime"`
	Data []byte `json:"data"`
}
