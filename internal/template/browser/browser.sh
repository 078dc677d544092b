#!/bin/sh
# browser [ARGUMENT...]: runs Chromium with a display, which a person can look at and take over: port 6080 has a page
# that shows it. Programs that start a browser, such as Playwright, start this one.
set -eu
n=99 size=${BROWSER_SIZE:-1280x800} run=/run/browser
runs() { [ -s "$run/$1.pid" ] && kill -0 "$(cat "$run/$1.pid")" 2>/dev/null; }

# begin NAME COMMAND...: starts a program that stays, without the pipes over which Chromium is driven.
begin() {
	name=$1
	shift
	setsid "$@" </dev/null >"$run/$name.log" 2>&1 3>&- 4>&- 9>&- &
	echo $! >"$run/$name.pid"
}

# until_ready NAME SECONDS TEST...: waits until a test holds: the program of that name is ready.
until_ready() {
	name=$1 left=$(($2 * 20))
	shift 2
	until "$@"; do
		left=$((left - 1))
		if [ "$left" -le 0 ] || ! runs "$name"; then
			echo "browser: $name did not start:" >&2
			tail -n 20 "$run/$name.log" >&2
			exit 1
		fi
		sleep 0.05
	done
}

listens() { grep -q ":17C0 00000000:0000 0A" /proc/net/tcp; } # port 6080

mkdir -p "$run/web"
(
	umask 077
	flock 9 || exit 1 # several browsers may start at once
	if ! runs display; then
		rm -f "/tmp/.X$n-lock" "/tmp/.X11-unix/X$n"
		begin display Xtigervnc ":$n" -geometry "$size" -depth 24 -rfbport 5999 -localhost=1 -SecurityTypes None \
			-AlwaysShared -desktop Browser
		until_ready display 20 test -S "/tmp/.X11-unix/X$n"
		begin windows env DISPLAY=":$n" openbox
	fi
	if ! runs view; then
		# Pages that the browser shows reach the ports of the sandbox. Only the page of the display has the token.
		token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n') && echo "$token: 127.0.0.1:5999" >"$run/tokens" &&
			sed "s/TOKEN/$token/" /usr/local/share/browser/index.html >"$run/web/index.html" &&
			ln -sfn /usr/share/novnc "$run/web/novnc" || exit 1
		begin view websockify --web "$run/web" --token-plugin TokenFile --token-source "$run/tokens" 127.0.0.1:6080
		until_ready view 20 listens
	fi
) 9>"$run/lock" || exit 1
export DISPLAY=":$n"
exec /usr/bin/chromium "$@"
