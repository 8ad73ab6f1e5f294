// What test_accessible.py asks a page about itself.

// words in drawings, which axe passes over: too little contrast to what they are painted on, or to their own edge
function pale() {
  const rgb = s => s.match(/[\d.]+/g).slice(0, 3).map(Number), paper = rgb(getComputedStyle(document.body).backgroundColor);
  const light = c => c.map(x => x / 255).map(x => (x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4))
    .reduce((sum, x, i) => sum + x * [.2126, .7152, .0722][i], .05);
  const under = text => { // the colour of the cell in which it stands
    const { x, y, width, height } = text.getBBox(), [a, b] = [x + width / 2, y + height / 2];
    const within = (e, v, from, size) => +e.getAttribute(from) <= v && v <= +e.getAttribute(from) + +e.getAttribute(size);
    const cell = [...text.parentNode.children].filter(e => e.localName === "rect" && e.getAttribute("class") !== "flag")
      .find(e => within(e, a, "x", "width") && within(e, b, "y", "height"));
    const look = cell && getComputedStyle(cell);
    if (!look || look.fill === "none" || look.fill === "rgba(0, 0, 0, 0)") return paper;
    return rgb(look.fill).map((v, i) => v * look.fillOpacity + paper[i] * (1 - look.fillOpacity));
  };
  const found = [];
  for (const text of document.querySelectorAll("svg text")) {
    if (!text.checkVisibility()) continue;
    const look = getComputedStyle(text), ground = look.stroke === "none" ? under(text) : rgb(look.stroke);
    const [a, b] = [light(rgb(look.fill)), light(ground)].sort((a, b) => b - a);
    if (a / b < 4.5) found.push(`${text.getAttribute("class")} ${text.textContent}: ${look.fill} on ${ground}, ${a / b}`);
  }
  return found;
}

const scrolls = e => ["auto", "scroll"].includes(getComputedStyle(e).overflowX);

// what reaches out of the page, or is cut off by a box that cannot be scrolled
function cut() {
  const root = document.documentElement, wide = root.clientWidth, found = [];
  const inScrolled = e => e && (scrolls(e) || inScrolled(e.parentElement));
  if (root.scrollWidth > wide) found.push(`the page: ${root.scrollWidth}`);
  for (const e of document.querySelectorAll("body *")) {
    const drawn = e.closest("svg") && !["svg", "text"].includes(e.localName);
    if (drawn || !e.checkVisibility() || e.closest(".hidden, .skip")) continue;
    const { left, right, width } = e.getBoundingClientRect(), what = `${e.outerHTML.slice(0, 90)} ${left}..${right}`;
    if (width && (left < -1 || right > wide + 1) && !inScrolled(e.parentElement)) found.push(`outside: ${what}`);
    const hides = !(e instanceof SVGElement) && ["hidden", "clip"].includes(getComputedStyle(e).overflowX);
    if (hides && e.scrollWidth > e.clientWidth + 1) found.push(`cut off: ${what}`);
  }
  return found;
}

// what would have to be scrolled to see all of it
function scrolled() {
  const boxes = [...document.querySelectorAll("body *")].filter(e => scrolls(e) && e.scrollWidth > e.clientWidth + 1);
  return boxes.map(e => e.outerHTML.slice(0, 90));
}

// colours [r, g, b, opacity] of the grounds that are painted; a mark, a key, a cell of a table is none
function grounds() {
  const large = e => !e.matches("td") && e.offsetWidth > 60 && e.offsetHeight > 20;
  return [...document.querySelectorAll("html, body, body *")].filter(large).map(e => getComputedStyle(e).backgroundColor.match(/[\d.]+/g).map(Number)).filter(c => c[3] !== 0);
}

// whatever can be worked or scrolled, or answers to the pointer; in the order in which it is read
function controls() {
  const tips = document.querySelector(".tip");
  return [...document.querySelectorAll("body *")].filter(e => {
    if (!e.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true })) return false;
    if (e.matches('svg[role=group] a[tabindex="-1"], svg[role=group] a[tabindex="-1"] *')) return false; // arrows lead there
    if (e.matches("input[type=radio]")) return e.checked; // of a group Tab reaches the chosen one, arrows the others
    if (e.matches("label[for]")) return false; // its input is
    if (e.matches('a[href], button, input, select, textarea, summary, [tabindex="0"]')) return true;
    if (scrolls(e) && e.scrollWidth > e.clientWidth) return true;
    if (getComputedStyle(e).cursor === "pointer") return !e.parentElement.closest("a[href], button, label, summary");
    return Boolean(tips && e.matches("svg[role=img], svg[role=group]") && e.querySelector(":scope :not(svg) > title"));
  });
}

const went = []; // where keys have led: which, whether it is in sight, whether it is marked
addEventListener("focusin", () => {
  const e = document.activeElement, look = getComputedStyle(e);
  const { left, right, top, bottom, width } = e.getBoundingClientRect();
  const seen = width > 0 && right > 0 && left < innerWidth && bottom > 0 && top < innerHeight;
  went.push({ e, seen, marked: look.outlineStyle === "solid" && parseFloat(look.outlineWidth) >= 2 });
});

// whether Tab has left the last stop: it is out of the page, or at the first again
function over() {
  const e = document.activeElement;
  return e === document.body || (went.length > 1 && e === went[0].e && Boolean(went.pop()));
}
