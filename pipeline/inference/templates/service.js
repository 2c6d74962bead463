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
