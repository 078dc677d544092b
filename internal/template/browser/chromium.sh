#!/bin/sh
# chromium [ARGUMENT...]: Debian's Chromium. Pictures, PDFs and texts of pages without a display are made by its headless
# shell, which has the same engine without windows, and starts in half the time. --headless=new starts Chromium itself.
headless='' output=''
for argument; do
	case $argument in
	--headless | --headless=old) headless=yes ;;
	--screenshot | --screenshot=* | --print-to-pdf | --print-to-pdf=* | --dump-dom) output=yes ;;
	esac
done
if [ -z "$headless" ] || [ -z "$output" ]; then
	exec /usr/bin/chromium "$@"
fi
. /etc/chromium.d/sandlot
# shellcheck disable=SC2086
exec /usr/bin/chromium-headless-shell $CHROMIUM_FLAGS "$@"
