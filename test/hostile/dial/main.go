// Dial fetches /hello from an address, as a static program does that knows of
// no proxy: dial HOST:PORT [NAMESERVER:PORT].
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

func main() {
	d := &net.Dialer{}
	if len(os.Args) > 2 {
		d.Resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn,
			error) {
			return new(net.Dialer).DialContext(ctx, network, os.Args[2])
		}}
	}
	client := &http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
	r, err := http.NewRequest("GET", "http://"+os.Args[1]+"/hello", nil)
	if err == nil {
		r.Host = "web.test"
		var resp *http.Response
		if resp, err = client.Do(r); err == nil {
			_, err = io.Copy(os.Stdout, resp.Body)
			resp.Body.Close()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
