// Follows the run: asks for what there is to show, and changes on the page only what differs.
"use strict";
addEventListener("DOMContentLoaded", () => {
  const live = document.getElementById("live"), cut = document.getElementById("cut");
  const STAY = ["open", "tabindex", "aria-keyshortcuts"]; // what a person unfolded, and what page.js made of a drawing
  const ours = node => node.classList?.contains("keep"); // buttons that page.js added
  let latest = "", answered = new Date();

  function become(old, fresh) { // the same element stays, so that a focus, a selection or a scrolled table stays too
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !STAY.includes(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const now = [...old.childNodes].filter(child => !ours(child)), next = [...fresh.childNodes];
    next.forEach((child, i) => i < now.length ? become(now[i], child) : old.append(child));
    now.slice(next.length).forEach(child => child.remove());
  }

  async function look() {
    let pause = 1000;
    try {
      const answer = await fetch("state.json", { cache: "no-store", signal: AbortSignal.timeout(15000) });
      if (!answer.ok) throw new Error(answer.statusText);
      const { html, title, state } = await answer.json();
      if (html !== latest) {
        const whole = document.createElement("template");
        whole.innerHTML = `<div id="live">${html}</div>`; // made by our template, which escapes every name
        dispatchEvent(new Event("vitrail:before"));
        become(live, whole.content.firstChild);
        dispatchEvent(new Event("vitrail:after"));
        latest = html;
      }
      document.title = title;
      answered = new Date();
      cut.hidden = true;
      if (state === "finished") pause = 5000;
    } catch {
      cut.textContent = `Vitrail does not answer. This is how it stood at ${answered.toLocaleTimeString()}.`;
      cut.hidden = false;
      pause = 3000;
    }
    setTimeout(look, pause);
  }
  setTimeout(look, 1000);
});
