// Styles are adopted by the document: no element and no attribute of style is ever made, which the page's policy refuses.
export function adopt(css: string) {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(css);
  document.adoptedStyleSheets.push(sheet);
}
