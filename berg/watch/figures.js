// Draws charts with Plotly, from each figure's data: JSON in an attribute.
"use strict"
{
  // The page's rules refuse styles in attributes and in elements. Plotly is made to write them through the one interface
  // that is allowed; the styles of its maps are left out.
  const setAttribute = Element.prototype.setAttribute
  Element.prototype.setAttribute = function (name, value) {
    if (name === "style" && this.style) this.style.cssText = value
    else setAttribute.call(this, name, value)
  }
  document.head.appendChild = node => node.nodeName === "STYLE" && node.textContent ? node : Node.prototype.appendChild.call(document.head, node)

  const POINTS_OF_ALL = 30 // lines up to which the values of all are shown at a step
  const SHADES = ["#3b4cc0", "#5a78e4", "#7b9ff9", "#9ebeff", "#f2b08c", "#ee8468", "#d65244", "#b40426"]
  const logarithmic = new Set() // titles of figures with a logarithmic axis
  let smoothing = 0

  const color = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()
  // Plotly reads a part of HTML in its texts, so texts from jobs are escaped.
  const plain = text => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;")
  const digits = value => typeof value === "number" ? String(+value.toPrecision(4)) : String(value)

  function base() {
    const grid = { gridcolor: color("line"), linecolor: color("line"), zerolinecolor: color("line"), automargin: true, tickformat: "~g", hoverformat: ".4~g" }
    return {
      height: 260, margin: { t: 8, r: 12, b: 36, l: 52 }, showlegend: false, dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: color("text"), size: 12 },
      hoverlabel: { bgcolor: color("back"), bordercolor: color("line"), font: { color: color("text") }, namelength: 40, align: "left" },
      xaxis: { ...grid }, yaxis: { ...grid },
    }
  }

  // A moving average in which earlier values fade, as TensorBoard's.
  function smooth(values) {
    let last = 0, weight = 0
    return values.map(value => {
      last = last * smoothing + (1 - smoothing) * value
      weight = weight * smoothing + (1 - smoothing)
      return last / weight
    })
  }

  function lines(figure, about) {
    const layout = base(), data = []
    const several = about.lines.length > 1
    about.lines.forEach((line, at) => {
      const shade = color(`s${at % 8}`)
      const drawn = { x: line.x, name: plain(line.name), mode: line.x.length > 1 ? "lines" : "markers", line: { color: shade, width: 1.8 }, marker: { color: shade, size: 8 } }
      if (smoothing) data.push({ ...drawn, y: line.y, opacity: .25, hoverinfo: "skip" })
      data.push({ ...drawn, y: smoothing ? smooth(line.y) : line.y })
    })
    layout.hovermode = about.lines.length > POINTS_OF_ALL ? "closest" : "x unified"
    layout.hoverdistance = -1
    layout.showlegend = several && about.lines.length <= POINTS_OF_ALL
    layout.legend = { orientation: "h", y: -.2, yanchor: "top", font: { size: 11 } }
    layout.xaxis.title = { text: plain(about.across), standoff: 4, font: { size: 11, color: color("weak") } }
    layout.yaxis.ticksuffix = about.unit ? ` ${about.unit}` : ""
    if (about.top) layout.yaxis.range = [0, Math.max(about.top, ...about.lines.flatMap(line => line.y)) * 1.04]
    if (logarithmic.has(figure.dataset.name)) { layout.yaxis.type = "log"; delete layout.yaxis.range }
    return [data, layout]
  }

  const hidden = () => new Set([...document.querySelectorAll("#list tr[hidden]")].map(row => row.dataset.job))

  // Whether numbers span decades, as learning rates do, so that a logarithmic axis shows more.
  function isWide(values) {
    const numbers = values.filter(value => typeof value === "number")
    return numbers.length > 1 && Math.min(...numbers) > 0 && Math.max(...numbers) / Math.min(...numbers) >= 100
  }

  function scatter(figure, about) {
    const layout = base(), out = hidden(), kept = about.jobs.map((_, at) => at).filter(at => !out.has(about.jobs[at]))
    const pick = values => kept.map(at => values[at])
    for (const [axis, side] of [["xaxis", about.x], ["yaxis", about.y]]) {
      layout[axis].title = { text: plain(side.name), standoff: 4, font: { size: 11 } }
      if (side.words.length) Object.assign(layout[axis], { type: "category", categoryorder: "array", categoryarray: side.words.map(plain), tickformat: "" })
      else if (isWide(side.values)) layout[axis].type = "log"
    }
    const shown = side => pick(side.values.map(value => side.words.length ? plain(value) : value))
    const heights = about.y.words.length ? about.y.values.map(value => about.y.words.indexOf(String(value))) : about.y.values
    const text = pick(about.jobs.map((job, at) => `${plain(job)}<br>${plain(about.x.name)}: ${plain(digits(about.x.values[at]))}<br>${plain(about.y.name)}: ${plain(digits(about.y.values[at]))}`))
    const marker = { size: 9, color: pick(heights), colorscale: SHADES.map((shade, at) => [at / (SHADES.length - 1), shade]), line: { width: 1, color: color("back") } }
    layout.hovermode = "closest"
    return [[{ x: shown(about.x), y: shown(about.y), text, hoverinfo: "text", mode: "markers", marker, customdata: pick(about.jobs) }], layout]
  }

  // The positions of a column's values, from 0 to 1; null for a missing one.
  function places(column) {
    if (column.words.length) return column.values.map(value => value === null ? null : (column.words.indexOf(String(value)) + .5) / column.words.length)
    const scale = isWide(column.values) ? Math.log10 : value => value
    const numbers = column.values.filter(value => value !== null).map(scale)
    const low = Math.min(...numbers), span = Math.max(...numbers) - low || 1
    return column.values.map(value => value === null ? null : (scale(value) - low) / span)
  }

  function parallel(figure, about) {
    const layout = base(), out = hidden(), last = about.columns.length - 1
    const at = about.columns.map(places)
    const groups = SHADES.map(shade => ({ x: [], y: [], text: [], customdata: [], mode: "lines", hoverinfo: "text", line: { color: shade, width: 1.2 }, opacity: .8 }))
    about.jobs.forEach((job, number) => {
      if (out.has(job)) return
      const place = at[last][number]
      const group = groups[place === null ? 0 : Math.min(SHADES.length - 1, Math.floor(place * SHADES.length))]
      const text = [plain(job), ...about.columns.map(column => `${plain(column.name)}: ${plain(digits(column.values[number] ?? ""))}`)].join("<br>")
      about.columns.forEach((_, column) => {
        group.x.push(column); group.y.push(at[column][number]); group.text.push(text); group.customdata.push(job)
      })
      group.x.push(null); group.y.push(null); group.text.push(""); group.customdata.push("")
    })
    groups.push({ x: [], y: [], mode: "lines", hoverinfo: "skip", line: { color: color("text"), width: 4 } }) // the highlighted one
    Object.assign(layout, { height: 340, hovermode: "closest", hoverdistance: 40, margin: { t: 30, r: 60, b: 16, l: 40 } })
    Object.assign(layout.xaxis, { side: "top", tickvals: about.columns.map((_, column) => column), ticktext: about.columns.map(column => plain(column.name.slice(0, 24))), range: [-.15, last + .35], fixedrange: true })
    Object.assign(layout.yaxis, { visible: false, range: [-.05, 1.05] })
    layout.annotations = about.columns.flatMap((column, number) => marks(column, at[number]).map(([y, text]) => ({ x: number, y, text: plain(text.slice(0, 14)), showarrow: false, xanchor: "left", xshift: 4, font: { size: 11 }, bgcolor: color("back"), opacity: .85 })))
    return [groups.filter((group, number) => group.x.length || number === groups.length - 1), layout]
  }

  function marks(column, at) { // values shown at an axis: its words, or its two ends
    if (column.words.length) return column.words.slice(0, 20).map((word, number) => [(number + .5) / column.words.length, word])
    const numbers = column.values.filter(value => value !== null)
    if (!numbers.length) return []
    const [low, high] = [Math.min(...numbers), Math.max(...numbers)]
    return low === high ? [[0, digits(low)]] : [[0, digits(low)], [1, digits(high)]]
  }

  const KINDS = { lines, scatter, parallel }
  const known = new Map() // figure -> its data
  const figuresIn = part => [...part.querySelectorAll("figure.drawing")]

  function draw(figure) {
    const about = known.get(figure) || JSON.parse(figure.dataset.figure)
    let plot = figure.querySelector(".plotted")
    if (!plot) plot = place(figure, about)
    const [data, layout] = KINDS[about.kind](figure, about)
    figure.total = data.length
    layout.uirevision = about.kind === "lines" ? String(logarithmic.has(figure.dataset.name)) : "same"
    return Plotly.react(plot, data, layout, { responsive: true, displayModeBar: false })
  }

  function place(figure, about) { // the first time
    known.set(figure, about)
    const plot = document.createElement("div")
    plot.className = "plotted"
    figure.append(plot)
    figure.classList.add("done")
    if (about.kind === "lines") figure.querySelector("figcaption").append(box(figure))
    Plotly.newPlot(plot, [], base())
    plot.on("plotly_relayout", changed => {
      const keys = Object.keys(changed)
      if (keys.some(key => key.includes(".range"))) figure.classList.add("zoomed")
      if (keys.some(key => key.endsWith(".autorange"))) figure.classList.remove("zoomed")
    })
    plot.on("plotly_doubleclick", () => figure.classList.remove("zoomed"))
    if (about.kind !== "lines") {
      plot.on("plotly_hover", event => lightRows(event.points[0].customdata))
      plot.on("plotly_unhover", () => lightRows(""))
      plot.on("plotly_click", event => {
        const link = [...document.querySelectorAll("#list tr[data-job]")].find(row => row.dataset.job === event.points[0].customdata)?.querySelector("td a")
        if (link) link.click()
      })
    }
    return plot
  }

  function box(figure) { // makes its axis logarithmic
    const label = document.createElement("label"), input = document.createElement("input")
    input.type = "checkbox"
    input.checked = logarithmic.has(figure.dataset.name)
    input.onchange = () => {
      input.checked ? logarithmic.add(figure.dataset.name) : logarithmic.delete(figure.dataset.name)
      draw(figure)
    }
    label.append(input, " logarithmic")
    return label
  }

  function slider(part) { // smooths all lines of a section
    if (!part.querySelector("figure.lines.drawing") || part.querySelector(".smoothing")) return
    const label = document.createElement("label"), input = document.createElement("input")
    label.className = "smoothing"
    Object.assign(input, { type: "range", min: 0, max: .99, step: .01, value: smoothing })
    input.oninput = () => {
      smoothing = Number(input.value)
      for (const other of document.querySelectorAll(".smoothing input")) other.value = smoothing
      figuresIn(document).filter(figure => figure.matches(".lines.done")).forEach(draw)
    }
    label.append("Smoothing ", input)
    part.querySelector("h2").after(label)
  }

  const seen = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target) }
  }, { rootMargin: "400px" })

  window.drawFigures = part => {
    if (!window.Plotly) return // it is still loading, or not installed
    delete document.head.appendChild
    for (const each of part.matches?.("section") ? [part] : part.querySelectorAll("section")) slider(each)
    figuresIn(part).forEach(figure => seen.observe(figure))
  }
  window.filterFigures = () => figuresIn(document).filter(figure => figure.matches(".done:not(.lines)")).forEach(draw)

  function lightRows(job) {
    for (const each of document.querySelectorAll("tr[data-job]")) each.classList.toggle("lit", each.dataset.job === job)
  }
  let waiting = 0, lit = ""
  window.lightFigures = job => { // highlight the line of the job at the pointer
    if (job === lit) return
    lit = job
    clearTimeout(waiting)
    waiting = setTimeout(() => {
      for (const figure of figuresIn(document).filter(each => each.matches(".parallel.done"))) {
        const about = known.get(figure), number = about.jobs.indexOf(job)
        const y = number < 0 ? [] : about.columns.map(places).map(column => column[number])
        figure.dataset.lit = number < 0 ? "" : job
        Plotly.restyle(figure.querySelector(".plotted"), { x: [y.map((_, column) => column)], y: [y] }, [figure.total - 1])
      }
    }, 60)
  }
  document.addEventListener("DOMContentLoaded", () => drawFigures(document))
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => figuresIn(document).filter(figure => figure.matches(".done")).forEach(draw))
}
