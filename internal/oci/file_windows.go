package oci

// nonblock is nothing: folders of Windows have no pipes.
const nonblock = 0
