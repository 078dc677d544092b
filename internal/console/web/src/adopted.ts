// <adopted-style> stands for <style>, which the page's policy refuses: while it is in the document, its text is a style
// sheet that the document has adopted. The build lets xterm.js make this element.
class AdoptedStyle extends HTMLElement {
  private sheet = new CSSStyleSheet();

  override get textContent() {
    return "";
  }

  override set textContent(css: string) {
    this.sheet.replaceSync(css);
  }

  connectedCallback() {
    document.adoptedStyleSheets.push(this.sheet);
  }

  disconnectedCallback() {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== this.sheet);
  }
}

customElements.define("adopted-style", AdoptedStyle);
