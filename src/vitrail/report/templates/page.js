// Figures to keep, a button to print, and words under the pointer. All of the page can be read without this script.
"use strict";
addEventListener("DOMContentLoaded", () => {
  const SVG = "http://www.w3.org/2000/svg";
  const SCALE = 3; // pixels of a PNG for each of the page's
  const MARGIN = 20, LINE = 860, LEAST = 540, GAP = 24;
  const FONT = ["font-family", "font-size", "font-weight", "font-style"];
  const LOOK = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "paint-order", ...FONT];

  function make(name, attributes, ...children) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function plain(value) { // colours as every program reads them
    const rgb = /^rgba?\((\d+), (\d+), (\d+)(?:, ([\d.]+))?\)$/.exec(value);
    if (!rgb) return value;
    return rgb[4] === "0" ? "none" : "#" + rgb.slice(1, 4).map(part => (+part).toString(16).padStart(2, "0")).join("");
  }

  function copy(from, above) { // an element with its styles as attributes and without the words on hover
    const style = getComputedStyle(from), shape = from.localName === "svg" ? make("g", {}) : from.cloneNode(false);
    shape.removeAttribute("class");
    for (const name of LOOK) {
      const value = style.getPropertyValue(name);
      if (!above || value !== above.getPropertyValue(name)) shape.setAttribute(name, plain(value));
    }
    if (style.opacity !== "1") shape.setAttribute("opacity", style.opacity);
    for (const child of from.childNodes) {
      if (child.nodeType === Node.TEXT_NODE) shape.append(child.data);
      else if (!["title", "desc"].includes(child.localName)) shape.append(copy(child, style));
    }
    return shape;
  }

  const figureOf = svg => svg.closest("[data-figure]") ?? svg.closest("figure") ?? svg.closest(".panels");

  function about(figure) { // its name, title and note; those of a figure that has none are those of its drawing
    const drawing = figure.querySelector("svg:is([role=img], [role=group]) > title").textContent, { figure: name, title, note } = figure.dataset;
    const file = drawing.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60);
    return { name: name ?? (file || "figure"), title: title ?? drawing, note };
  }

  function keyOf(figure) { // what colours mean, where the page says it in words beside the drawing
    return [...figure.querySelectorAll(".key i")].map(swatch => {
      const { backgroundColor, borderTopColor, borderRadius } = getComputedStyle(swatch), words = swatch.parentElement.textContent.trim();
      const fill = plain(backgroundColor), head = swatch.closest("li").querySelector("b")?.textContent;
      return { fill, stroke: fill === "none" ? plain(borderTopColor) : "none", round: borderRadius === "50%", words: head ? `${head}: ${words}` : words };
    });
  }

  function drawn(figure) { // one drawing on white: title, key, then the parts from left to right
    const legend = figure.closest("figure")?.querySelector(".legend");
    const parts = [...figure.querySelectorAll("svg:not(.narrow, .legend)")].filter(svg => figureOf(svg) === figure);
    const text = (size, weight, words) => make("text", { "font-size": size, "font-weight": weight, fill: "#1d2126" }, words);
    const placed = [], { name, title, note } = about(figure);
    const place = (shape, x, y) => { shape.setAttribute("transform", `translate(${MARGIN + x} ${MARGIN + y})`); placed.push(shape); };
    let x = 0, y = 34, high = 0, wide = LEAST;
    const end = () => { y += high; x = high = 0; };
    place(text(15, 700, title), 0, 14);
    for (const { fill, stroke, round, words } of keyOf(figure)) {
      const width = 36 + 6.8 * words.length;
      if (x && x + width > LINE) { x = 0; y += 20; }
      place(make("rect", { width: 11, height: 11, y: -9, fill, stroke, rx: round ? 6 : 0 }), x, y + 2);
      place(text(12, 400, words), x + 17, y + 2);
      x += width;
      wide = Math.max(wide, x);
    }
    if (x) { x = 0; y += 22; }
    for (const part of legend ? [legend, ...parts] : parts) {
      const { width, height } = part.viewBox.baseVal, head = part.closest(".panel")?.querySelector("h3")?.textContent;
      if (x && x + width > LINE) end();
      if (head) place(text(14, 600, head), x, y + 14);
      place(copy(part), x, y + (head ? 22 : 0));
      high = Math.max(high, height + (head ? 22 + GAP : 0));
      wide = Math.max(wide, x + width);
      x += width + (head ? GAP : 0);
      if (part === legend) { high += 14; end(); }
    }
    end();
    if (note) { place(text(12, 400, note), 0, y + 18); y += 24; }
    const [width, height] = [Math.ceil(wide + 2 * MARGIN), Math.ceil(y + 2 * MARGIN)];
    const words = make("desc", {}, parts.map(part => part.querySelector("desc")?.textContent ?? "").join(" ").trim());
    const size = { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": getComputedStyle(document.body).fontFamily };
    const whole = make("svg", size, make("title", {}, title), words, make("rect", { width, height, fill: "#ffffff" }), ...placed);
    return { name, width, height, text: new XMLSerializer().serializeToString(whole) };
  }

  function onPaper(figure) { // as it is printed, whatever the screen shows
    const root = document.documentElement;
    root.classList.add("paper");
    try { return drawn(figure); } finally { root.classList.remove("paper"); }
  }

  function keep(blob, file) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }

  const KINDS = {
    SVG: figure => {
      const { name, text } = onPaper(figure);
      keep(new Blob([text], { type: "image/svg+xml" }), name + ".svg");
    },
    PNG: figure => {
      const { name, width, height, text } = onPaper(figure), image = new Image();
      image.onload = () => {
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [SCALE * width, SCALE * height];
        canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
        canvas.toBlob(blob => keep(blob, name + ".png"), "image/png");
      };
      image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
    },
  };
  function button(words, label, act) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = words;
    made.setAttribute("aria-label", label);
    made.addEventListener("click", act);
    return made;
  }

  const titles = new Map(); // of figures, and how many have it
  function offerToKeep() { // buttons at every figure, and one that prints the page
    for (const figure of new Set([...document.querySelectorAll("svg[role=img], svg[role=group]")].map(figureOf))) {
      if (!figure || figure.querySelector(":scope > .keep")) continue;
      const { title } = about(figure), again = (titles.get(title) ?? 0) + 1, label = again > 1 ? `${title} (${again})` : title;
      titles.set(title, again);
      const line = document.createElement("p");
      line.className = "keep";
      line.append(...Object.entries(KINDS).map(([kind, act]) => button(kind, `Save as ${kind}: ${label}`, () => act(figure))));
      figure.prepend(line);
    }
    const head = document.querySelector("header > .kind");
    if (!head || head.querySelector(".keep")) return;
    const print = document.createElement("span");
    print.className = "keep";
    print.append(button("Print", "Print, or save as PDF", () => window.print()));
    head.append(print);
  }
  offerToKeep();

  // one part of a choice at a time; without this script all are shown
  for (const choice of document.querySelectorAll("[data-choose]")) {
    const parts = [...choice.querySelectorAll(":scope > [data-name]")], select = document.createElement("select");
    const label = document.createElement("label");
    for (const part of parts) select.append(new Option(part.dataset.name));
    const show = () => parts.forEach((part, i) => { part.hidden = i !== select.selectedIndex; });
    select.addEventListener("change", show);
    label.className = "choose";
    label.append(choice.dataset.choose + " ", select);
    choice.prepend(label);
    show();
  }

  // the words of a shape's title, at once and on telephones too; the browser's own would come late and beside it
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status"); // read aloud where a reader goes through a figure by keyboard
  const ring = document.createElement("div"); // around the shape that keys have reached
  ring.className = "ring";
  ring.hidden = true;
  document.body.append(ring, tip);
  let held = null; // whose words are shown: by a pointer, or by keys
  const letGo = () => {
    if (held?.title) held.shape.prepend(held.title);
    held = null;
    tip.hidden = ring.hidden = true;
  };
  const titleOf = shape => [...shape.children].find(child => child.localName === "title");
  const place = (x, above, below) => {
    const { offsetWidth: width, offsetHeight: height } = tip;
    tip.style.left = Math.max(6, Math.min(x, document.documentElement.clientWidth - width - 6)) + "px";
    tip.style.top = (below + height < innerHeight ? below : above - height) + "px";
  };
  const move = event => place(event.clientX + 10, event.clientY - 10, event.clientY + 18);
  addEventListener("pointerover", event => {
    letGo();
    let shape = event.target;
    while (shape.closest?.("svg") && shape.localName !== "svg") {
      const title = titleOf(shape);
      if (title) {
        held = { shape, title };
        tip.textContent = title.textContent;
        title.remove();
        tip.hidden = false;
        return move(event);
      }
      shape = shape.parentNode;
    }
  });
  addEventListener("pointermove", event => held && !held.keys && move(event));
  addEventListener("pointerout", event => event.pointerType === "mouse" && letGo());

  // the same by keyboard: a figure is one stop, arrows go from shape to shape in it, Escape puts the words away
  const beside = () => {
    const { left, top, bottom, width, height } = held.shape.getBoundingClientRect();
    Object.assign(ring.style, { left: left + "px", top: top + "px", width: width + "px", height: height + "px" });
    place(left, top - 10, bottom + 10);
  };
  const middle = shape => (r => [r.x + r.width / 2, r.y + r.height / 2])(shape.getBoundingClientRect());
  function next(shapes, key) {
    const at = held?.keys ? shapes.indexOf(held.shape) : -1;
    if (key === "Home" || at < 0) return shapes[0];
    if (key === "End") return shapes.at(-1);
    if (key === "ArrowLeft" || key === "ArrowRight") return shapes[at + (key === "ArrowRight" ? 1 : -1)];
    const [x, y] = middle(shapes[at]), way = key === "ArrowDown" ? 1 : -1;
    const far = shape => (([a, b]) => (way * (b - y) > 1 ? way * (b - y) + 4 * Math.abs(a - x) : Infinity))(middle(shape));
    const nearest = shapes.map(shape => [far(shape), shape]).reduce((a, b) => (b[0] < a[0] ? b : a));
    return nearest[0] < Infinity ? nearest[1] : undefined;
  }
  addEventListener("hashchange", () => { // not every browser unfolds what a link leads into
    const place = document.querySelector(":target"), folded = place?.closest("details:not([open])");
    for (let box = folded; box; box = box.parentElement.closest("details:not([open])")) box.open = true;
    if (folded) place.scrollIntoView();
  });
  function follow(link) { // to what a shape leads to, and on from there by keyboard
    location.hash = link.getAttribute("href");
    document.querySelector(link.getAttribute("href"))?.focus();
  }
  const stops = new WeakSet(); // drawings that keys go into
  function openToKeys(figure) {
    const within = () => [...figure.querySelectorAll(":scope :not(svg) > title")].map(title => title.parentNode);
    if (!within().length) return;
    figure.setAttribute("tabindex", "0");
    figure.setAttribute("aria-keyshortcuts", "ArrowLeft ArrowRight ArrowUp ArrowDown Home End Escape");
    if (stops.has(figure)) return;
    stops.add(figure);
    figure.addEventListener("blur", () => held?.keys && letGo());
    figure.addEventListener("keydown", event => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      if (event.key === "Escape") return letGo();
      if (event.key === "Enter" && held?.keys && held.shape.localName === "a") return follow(held.shape);
      if (!/^(Arrow(Left|Right|Up|Down)|Home|End)$/.test(event.key)) return;
      event.preventDefault();
      if (held && !held.keys) letGo(); // its title is back before all are looked for
      const shape = next(within(), event.key);
      if (!shape) return;
      letGo();
      held = { shape, keys: true };
      shape.scrollIntoView({ block: "nearest", inline: "nearest" });
      tip.textContent = titleOf(shape).textContent;
      tip.hidden = ring.hidden = false;
      beside();
    });
  }
  const openAll = () => document.querySelectorAll("svg[role=img], svg[role=group]").forEach(openToKeys);
  openAll();
  addEventListener("scroll", () => (held?.keys ? beside() : letGo()), true);
  addEventListener("vitrail:before", letGo); // live.js is about to change the page, and has changed it
  addEventListener("vitrail:after", () => { offerToKeep(); openAll(); });
});
