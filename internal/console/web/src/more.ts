// The screens that are loaded when one of them is first shown.
export { default as Connect } from "./connect";
export { default as Servers } from "./servers";
export { default as SessionPage } from "./session";
export { default as Access } from "./access";
export { default as Operator } from "./operator";
