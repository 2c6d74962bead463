"""The page of the HTTP service: a person types a text and sees its label, and which words counted.

It asks `predict` beside it, and nothing else. A text behind `#` in the address is labelled at once; a browser
keeps that part to itself.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1f; --soft: #5a5a66; --line: #d8d8e0; --paper: #fff;
  --card: #f6f7f9; --link: #0b57a4; --for: 0, 158, 115; --against: 213, 94, 0 }
@media (prefers-color-scheme: dark) { :root { --ink: #ececf1; --soft: #a9a9b6; --line: #3a3a44;
  --paper: #16161a; --card: #1f1f25; --link: #7ab8f5 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 46rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif }
h1 { font-size: 1.4rem } label { display: block; margin: .8rem 0 .2rem; color: var(--soft) }
textarea, input { width: 100%; padding: .5rem; font: inherit; color: inherit; background: var(--card);
  border: 1px solid var(--line); border-radius: 4px }
button { margin: .8rem 0; padding: .5rem 1.2rem; font: inherit; color: #fff; background: #0b57a4; border: 0;
  border-radius: 4px; cursor: pointer } button:disabled { opacity: .5; cursor: default }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px }
#label { font-size: 1.3rem; font-weight: bold; overflow-wrap: anywhere } #refusal { color: rgb(213, 94, 0) }
.row { display: grid; grid-template-columns: minmax(6rem, 30%) 1fr 4rem; gap: .6rem; align-items: center }
.row span { overflow-wrap: anywhere } .row span:last-child { text-align: right }
.bar { background: var(--card); height: .8rem; border-radius: 2px }
.bar i { display: block; height: 100%; background: rgb(var(--for)); border-radius: 2px }
.words { line-height: 1.9; overflow-wrap: anywhere; white-space: pre-wrap } .words span { border-radius: 3px }
.note { color: var(--soft); font-size: .9rem }
"""

_SCRIPT = """
const form = document.querySelector("form"), button = document.querySelector("button");
const areas = [...document.querySelectorAll("textarea")], token = document.querySelector("#token");
const found = document.querySelector("#found"), refusal = document.querySelector("#refusal");
function element(name, text, parent) {
  const made = document.createElement(name);
  made.textContent = text;
  parent.append(made);
  return made;
}
function showProbabilities(answer) {
  const place = document.querySelector("#probabilities");
  place.replaceChildren();
  const rows = Object.entries(answer.probabilities || {}).sort((a, b) => b[1] - a[1]);
  for (const [name, probability] of rows) {
    const row = element("div", "", place);
    row.className = "row";
    element("span", name, row);
    const bar = element("div", "", row);
    bar.className = "bar";
    element("i", "", bar).style.width = `${100 * probability}%`;
    element("span", `${(100 * probability).toFixed(1)}%`, row);
  }
}
function showWords(answer, texts) {
  const place = document.querySelector("#words");
  place.replaceChildren();
  const strongest = Math.max(1e-9, ...answer.words.map(each => Math.abs(each.by)));
  texts.forEach((text, number) => {
    const paragraph = element("p", "", place);
    paragraph.className = "words";
    let end = 0;
    const letters = [...text];  // places count characters, not UTF-16's halves
    const here = answer.words.filter(each => each.text === number).sort((a, b) => a.start - b.start);
    for (const each of here) {
      paragraph.append(letters.slice(end, each.start).join(""));
      const mark = element("span", each.words, paragraph);
      const colour = each.by > 0 ? "--for" : "--against";
      mark.style.background = `rgba(var(${colour}), ${Math.abs(each.by) / strongest * .55})`;
      mark.title = `${(100 * each.by).toFixed(1)} points`;
      end = each.start + [...each.words].length;
    }
    paragraph.append(letters.slice(end).join(""));
  });
}
async function ask() {
  const texts = areas.map(area => area.value);
  button.disabled = true;
  refusal.textContent = "";
  found.hidden = true;
  try {
    const headers = { "Content-Type": "application/json" };
    if (token && token.value) headers.Authorization = `Bearer ${token.value}`;
    const body = JSON.stringify({ texts: [texts.length > 1 ? texts : texts[0]], words: 1000 });
    const response = await fetch("predict", { method: "POST", headers, body });
    const said = await response.json().catch(() => ({}));
    if (!response.ok) {
      refusal.textContent = said.error || `The service answered with status ${response.status}; try again.`;
      return;
    }
    const answer = said.predictions[0];
    document.querySelector("#label").textContent = answer.label ?? "no words, no label";
    showProbabilities(answer);
    showWords(answer, texts);
    found.hidden = false;
  } catch (error) {
    refusal.textContent = `The service cannot be reached: ${error.message}`;
  } finally {
    button.disabled = false;
  }
}
form.addEventListener("submit", event => { event.preventDefault(); ask(); });
if (location.hash.length > 1 && areas.length === 1) {
  areas[0].value = decodeURIComponent(location.hash.slice(1));
  if (!token) ask();
}
"""


def page(num_texts: int, *, takes_token: bool) -> str:
    """Return the page for a classifier of so many texts."""
    areas = "".join(
        f"<label for='text{number}'>Text{'' if num_texts == 1 else f' {number}'}</label>"
        f"<textarea id='text{number}' rows='{6 if num_texts == 1 else 3}' required></textarea>"
        for number in range(1, num_texts + 1)
    )
    token = (
        "<label for='token'>Token</label><input id='token' type='password' autocomplete='off'>"
        if takes_token
        else ""
    )
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">
<title>headstart: label a text</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Label a text</h1>
<form>{areas}{token}<button>Label it</button></form>
<p id="refusal" role="alert"></p>
<div id="found" aria-live="polite" hidden>
<p id="label"></p>
<div id="probabilities"></div>
<h2>Words that counted</h2>
<p class="note">Green words made the label more probable, orange ones less: its probability with the word
minus that without it.</p>
<div id="words"></div>
</div>
<script>{_SCRIPT}</script>
</body>
</html>
"""
