// Charts with Plotly, which is loaded when the first one comes into view.
"use strict"

const SHADES = ["#3b4cc0", "#5a78e4", "#7b9ff9", "#9ebeff", "#f2b08c", "#ee8468", "#d65244", "#b40426"]
const MANY = 30 // lines up to which the values of all are shown at a step
const logarithmic = new Set() // titles of charts
const figures = new WeakMap() // element -> what it shows
let smoothing = 0, loading = null

const color = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()
// Plotly reads some HTML in its texts, so those of jobs are escaped.
const plain = text => clean(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;")

function load() {
  loading ??= new Promise((resolve, reject) => document.head.append(el("script", { src: site.plotly, onload: resolve, onerror: reject })))
  return loading
}

const seen = new IntersectionObserver(entries => {
  for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target) }
}, { rootMargin: "400px" })

function watchFigures(part) { part.querySelectorAll("figure.chart").forEach(each => seen.observe(each)) }

function figure(about) { // {kind: "lines", title, lines: [{name, points}], across: what, if not steps} or {kind: "scatter", title, across, up, points}
  const box = el("input", { type: "checkbox", checked: logarithmic.has(about.title), onchange: () => {
    box.checked ? logarithmic.add(about.title) : logarithmic.delete(about.title)
    draw(made)
  } })
  const made = el("figure", { className: "chart" }, el("figcaption", {}, el("span", {}, about.title), el("label", {}, box, " logarithmic")), el("div", {}))
  made.dataset.title = about.title
  figures.set(made, about)
  return made
}

function smoother(list) { // a slider for all charts; none for single points
  if (!list.some(about => about.lines?.some(line => line.points.length > 2))) return ""
  const input = el("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: smoothing, oninput: () => {
    smoothing = Number(input.value)
    document.querySelectorAll("figure.chart.done").forEach(draw)
  } })
  return el("label", { className: "smooth" }, "Smoothing ", input)
}

function smooth(values) { // a moving average in which earlier values fade, as TensorBoard's
  let last = 0, weight = 0
  return values.map(value => {
    last = last * smoothing + (1 - smoothing) * value
    weight = weight * smoothing + (1 - smoothing)
    return last / weight
  })
}

const isNumber = value => value !== "" && !isNaN(value)
function isWide(values) { // numbers that span a decade or more, as learning rates do
  const numbers = values.map(Number)
  return numbers.length > 1 && Math.min(...numbers) > 0 && Math.max(...numbers) / Math.min(...numbers) >= 10
}

async function draw(made) {
  await load()
  const about = figures.get(made)
  const axis = () => ({ gridcolor: color("line"), linecolor: color("line"), zerolinecolor: color("line"), automargin: true })
  const layout = {
    height: 260, margin: { t: 8, r: 12, b: 36, l: 52 }, dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", showlegend: false,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: color("text"), size: 12 },
    hoverlabel: { bgcolor: color("back"), bordercolor: color("line"), font: { color: color("text") }, namelength: 40 },
    xaxis: axis(), yaxis: { ...axis(), tickformat: "~g", hoverformat: ".4~g", type: logarithmic.has(about.title) ? "log" : "linear" }, uirevision: logarithmic.has(about.title),
  }
  const data = []
  if (about.kind === "lines") {
    about.lines.forEach((line, number) => {
      const shade = color(`s${number % 8}`), y = line.points.map(point => point[1])
      const base = { x: line.points.map(point => point[0]), name: plain(line.name), mode: y.length > 1 ? "lines" : "markers", line: { color: shade, width: 1.8 }, marker: { color: shade, size: 8 } }
      if (smoothing) data.push({ ...base, y, opacity: 0.25, hoverinfo: "skip", showlegend: false })
      data.push({ ...base, y: smoothing ? smooth(y) : y })
    })
    Object.assign(layout, { hovermode: about.lines.length > MANY ? "closest" : "x unified", hoverdistance: -1, showlegend: about.lines.length > 1 && about.lines.length <= MANY, legend: { orientation: "h", y: -0.2, yanchor: "top", font: { size: 11 } } })
    if (layout.showlegend) layout.height += 9 * about.lines.length // its rows
    layout.xaxis.title = { text: about.across || "step", standoff: 4, font: { size: 11, color: color("weak") } }
  } else {
    const across = about.points.map(point => point[0]), areNumbers = across.every(isNumber)
    layout.xaxis = { ...layout.xaxis, type: areNumbers ? isWide(across) ? "log" : "linear" : "category", title: { text: plain(about.across), standoff: 4, font: { size: 11 } } }
    layout.hovermode = "closest"
    const text = about.points.map(([x, y, name]) => `${plain(name)}<br>${plain(about.across)}: ${plain(x)}<br>${plain(about.up)}: ${plain(digits(y))}`)
    data.push({ x: across.map(x => areNumbers ? Number(x) : plain(x)), y: about.points.map(point => point[1]), text, hoverinfo: "text", mode: "markers", customdata: about.points.map(point => point[2]), marker: { size: 9, color: about.points.map(point => point[1]), colorscale: SHADES.map((shade, at) => [at / (SHADES.length - 1), shade]), line: { width: 1, color: color("back") } } })
  }
  const plot = made.lastChild
  await Plotly.react(plot, data, layout, { responsive: true, displayModeBar: false })
  if (!made.classList.contains("done") && about.kind === "scatter") plot.on("plotly_click", event => { location.hash = "#job/" + encodeURIComponent(event.points[0].customdata) })
  made.classList.add("done")
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.querySelectorAll("figure.chart.done").forEach(draw))
