// xterm.js, which is loaded with the first terminal. It imports nothing of the console: else the page would load the
// parts that both have as one more file.
import "./adopted";
export { FitAddon } from "@xterm/addon-fit";
export { Terminal } from "@xterm/xterm";
export { default as css } from "@xterm/xterm/css/xterm.css";
