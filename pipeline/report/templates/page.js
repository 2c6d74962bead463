const dark = matchMedia("(prefers-color-scheme: dark)");
function draw() {
  const ink = dark.matches ? "#ececf1" : "#1b1b1f", line = dark.matches ? "#3a3a44" : "#d8d8e0";
  const config = { background: "transparent", font: "system-ui, sans-serif",
    axis: { labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line },
    legend: { labelColor: ink, titleColor: ink }, view: { stroke: line }, title: { color: ink } };
  for (const block of document.querySelectorAll("script[type='application/json'][data-chart]")) {
    const place = document.getElementById(block.dataset.chart);
    vegaEmbed(place, JSON.parse(block.textContent), { renderer: "svg", actions: false, ast: true, config })
      .catch(error => { place.textContent = "not drawn: " + error; console.error(error); });
  }
}
dark.addEventListener("change", draw);
draw();
