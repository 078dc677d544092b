package wire

// Reply is the answer of an interpreter's driver to a cell, as JSON.
type Reply struct {
	ID        int64   `json:"id"`
	OK        bool    `json:"ok"`
	Result    *string `json:"result"`
	Error     string  `json:"error"`
	Traceback string  `json:"traceback"`
	Exit      int32   `json:"exit"`
	Rich      []Rich  `json:"rich"`
	Stopped   bool    `json:"interrupted"`
	// Raw, where a driver sends its output itself, names the files with stdout and
	// stderr as they came; "" where a terminal would show them as they are.
	Raw [2]string `json:"raw"`
}

// Rich is a value in another form than text.
type Rich struct {
	MIME string `json:"mime"`
	Data []byte `json:"data"`
}
