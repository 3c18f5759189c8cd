// Draws what `berg list`, `berg show` and `berg sweep` print as JSON. The address has the view: "#" the
// list, "#job/NAME", "#compare/NAME,NAME". All that jobs wrote becomes text, never HTML.
"use strict"

const EVERY = 10_000, FOLLOW = 2_000 // milliseconds between two looks at jobs, and at a log
const STEPS = ["step", "global_step", "iteration", "iter", "epoch", "time", "timestamp", "wall_time"] // are no metrics
const COMPARED = 40, FILES = 500, PICTURES = 60, SCATTERS = 12, LINES = 20_000
const FINAL = ["SUCCEEDED", "FAILED", "KILLED", "LOST"]
const main = document.querySelector("main")
const chosen = new Set() // names of ticked jobs
const drawn = new Map() // id of a section -> the data that it shows
let site = {}, wanted = "", sorting = null, turn = 0 // turn: of the view that is shown

// --- elements

const clean = text => String(text).replace(/[^\P{C}\n\t]/gu, "") // without what nobody sees

function el(name, about, ...inner) {
  const made = Object.assign(document.createElement(name), about)
  made.append(...inner.flat(Infinity).filter(each => each !== null && each !== undefined && each !== "").map(each => each instanceof Node ? each : clean(each)))
  return made
}

function section(id, data, build) { // build it again only if its data changed, and nobody clicks or is at a chart in it
  const text = JSON.stringify(data), old = document.getElementById(id)
  if (old && (drawn.get(id) === text || old.matches(":active, :has(figure:hover)"))) return
  drawn.set(id, text)
  const made = el("section", { id }, build())
  const open = new Set(old ? [...old.querySelectorAll("details[open]")].map(each => each.dataset.id) : [])
  made.querySelectorAll("details").forEach(each => { each.open = each.open || open.has(each.dataset.id) })
  const focus = document.activeElement, at = old?.contains(focus) ? focus.closest("tr")?.dataset.job : null
  old ? old.replaceWith(made) : main.append(made)
  if (at) [...made.querySelectorAll("tr[data-job]")].find(row => row.dataset.job === at)?.querySelector(focus.localName)?.focus()
  watchFigures(made)
}

function folded(id, title, ...inner) {
  const made = el("details", {}, el("summary", {}, title), ...inner)
  made.dataset.id = id
  return made
}

function command(text) {
  const button = el("button", { type: "button", onclick: async () => {
    await navigator.clipboard.writeText(text).then(() => { button.textContent = "Copied" }, () => getSelection().selectAllChildren(line))
  } }, "Copy")
  const line = el("pre", {}, text)
  return el("div", { className: "command" }, line, button)
}

const badge = state => el("span", { className: state }, state)
const note = text => el("p", { className: "note" }, text)
const weak = text => el("p", { className: "weak" }, text)
const link = name => el("a", { href: "#job/" + encodeURIComponent(name) }, name)
const details = facts => el("dl", {}, Object.entries(facts).filter(([, value]) => value).map(([key, value]) => [el("dt", {}, key), el("dd", {}, value)]))

// --- texts

function age(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "m"]]) if (seconds >= size * (unit === "d" ? 1 : 2)) return Math.floor(seconds / size) + unit
  return Math.max(0, Math.floor(seconds)) + "s"
}
const since = time => time ? (Date.now() - Date.parse(time)) / 1000 : 0
const dollars = usd => usd === null || usd === undefined ? "?" : "$" + usd.toFixed(2)
const ran = job => job.started_at ? age((Date.parse(job.finished_at || new Date()) - Date.parse(job.started_at)) / 1000) : ""
const size = bytes => bytes < 1000 ? bytes + " B" : bytes < 1e6 ? (bytes / 1e3).toFixed(1) + " kB" : bytes < 1e9 ? (bytes / 1e6).toFixed(1) + " MB" : (bytes / 1e9).toFixed(1) + " GB"
const digits = value => typeof value === "number" ? String(+value.toPrecision(6)) : value === null || value === undefined ? "" : String(value)
const machines = job => job.instances.length ? job.instances.join(", ") : job.machine

// --- data

async function get(path) {
  if (window.exported) {
    path = path.split("?")[0]
    if (path in exported) return exported[path]
    throw Error("this is not among the exported jobs")
  }
  const answer = await fetch(path), found = await answer.json()
  if (!answer.ok) throw Error(found.error)
  return found
}
const finished = new Map() // name -> a job that has ended, as this view has it
async function getJob(name) {
  const job = finished.get(name) || await get("job/" + of(name))
  if (FINAL.includes(job.state)) finished.set(name, job)
  return job
}
const of = name => encodeURIComponent(name)

// --- tables that sort

function table(columns, rows, about = {}) { // columns: [title, class]; a row: {key, cells: [text or node], values}
  const made = el("table", about), head = el("tr", {})
  const body = el("tbody", {})
  columns.forEach(([title, className], number) => {
    const cell = el("th", { className: className || "", scope: "col" }, title ? el("button", { type: "button", onclick: () => {
      sorting = { title, up: !(sorting && sorting.title === title && sorting.up) }
      order()
    } }, title) : "")
    head.append(cell)
  })
  for (const row of rows) {
    const line = el("tr", {}, row.cells.map((cell, number) => {
      const text = cell instanceof Node ? cell.textContent : clean(cell ?? "")
      const className = columns[number][1] || (text.length > 60 ? "long" : "")
      return el("td", { className, title: className === "tick" ? "" : text }, cell ?? "")
    }))
    line.values = row.values || row.cells
    if (row.key) line.dataset.job = row.key
    body.append(line)
  }
  function order() {
    const column = sorting ? columns.findIndex(([title]) => title === sorting.title) : -1
    if (column < 0) return
    ;[...head.cells].forEach((cell, number) => number === column ? cell.setAttribute("aria-sort", sorting.up ? "ascending" : "descending") : cell.removeAttribute("aria-sort"))
    const value = row => row.values[column] instanceof Node ? row.values[column].textContent : row.values[column] ?? ""
    body.append(...[...body.rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)]
      if (x === "" || y === "") return x !== "" ? -1 : y !== "" ? 1 : 0 // no value: last
      return (isNaN(x) || isNaN(y) ? String(x).localeCompare(String(y), undefined, { numeric: true }) : x - y) * (sorting.up ? 1 : -1)
    }))
  }
  made.append(el("thead", {}, head), body)
  order()
  return el("div", { className: "wide" }, made)
}

function filtered() {
  for (const row of document.querySelectorAll("tr[data-job]")) row.hidden = !row.textContent.toLowerCase().includes(wanted.toLowerCase())
}

function tools() { // the filter of a list, and the button that compares
  const field = el("input", { type: "search", id: "filter", placeholder: "Filter  /", value: wanted, ariaLabel: "Filter the jobs", oninput: () => { wanted = field.value; filtered() } })
  const button = el("button", { type: "button", id: "compare", onclick: () => { location.hash = "#compare/" + [...chosen].map(of).join(",") } })
  return el("div", { className: "bar" }, field, button)
}

function counted() {
  const button = document.getElementById("compare")
  if (button) Object.assign(button, { textContent: `Compare selected (${chosen.size})`, disabled: !chosen.size })
}

const tick = name => el("input", { type: "checkbox", checked: chosen.has(name), ariaLabel: `Select ${name}`, onchange: event => {
  event.target.checked ? chosen.add(name) : chosen.delete(name)
  counted()
} })

// --- the list

async function showList(mine) {
  const jobs = (await get("jobs")).slice().reverse()
  if (mine !== turn) return
  document.title = "Jobs · berg"
  const everyones = jobs.some(job => job.user && job.user !== site.user)
  const titles = ["Name", "State", "Age", "Cost", "GPUs", "Zone", ...(everyones ? ["User"] : []), "Exit", "About"]
  const columns = [["", "tick"], ...titles.map(title => [title, title.toLowerCase()])]
  if (!document.getElementById("filter")) main.append(tools())
  section("jobs", [jobs, Math.floor(Date.now() / 60_000)], () => {
    if (!jobs.length) return [el("p", {}, "There are no jobs yet. Start one:"), command('berg run "python train.py"')]
    const rows = jobs.map(job => {
      const about = [job.note, job.reason, job.state === "RUNNING" && job.attempt > 1 ? `attempt ${job.attempt}` : ""].filter(Boolean).join("; ")
      const user = everyones ? [job.user] : [], exit = job.exit_code ?? ""
      const old = since(job.created_at)
      return {
        key: job.name,
        cells: [tick(job.name), link(job.name), badge(job.state), age(old), dollars(job.usd), job.gpus, job.zone, ...user, exit, about],
        values: ["", job.name, job.state, old, job.usd ?? "", job.gpus, job.zone, ...user, exit, about],
      }
    })
    return [table(columns, rows, { className: "list" })]
  })
  counted()
  filtered()
}

// --- a job

async function showJob(mine, name) {
  const job = await get("job/" + of(name))
  const rows = job.rows ? await get("sweep/" + of(name)) : []
  if (mine !== turn) return true
  const isOver = FINAL.includes(job.state), code = job.metadata.code
  document.title = `${name} · berg`
  const cost = dollars(job.usd) + (isOver ? "" : ` so far, ${dollars(job.usd_per_hour)} an hour`)
  const facts = [job.note, ran(job) && `ran ${ran(job)}`, cost, [job.metadata.machine_type, job.zone].filter(Boolean).join(" in ")]
  section("top", [job.state, job.reason, job.ending, job.command, job.params, job.usd, job.note, job.instances], () => [
    el("h1", {}, name, " ", isOver && !job.instances.length || !site.live ? "" : endButton(job)),
    command(job.command || "a devbox"),
    Object.keys(job.params).length ? el("p", {}, Object.entries(job.params).map(([key, value]) => `${key}=${value}`).join("  ")) : "",
    el("p", {}, badge(job.state), job.exit_code ? ` with exit code ${job.exit_code}` : "", facts.filter(Boolean).map(text => ` · ${text}`)),
    job.reason ? note(job.reason) : "", job.ending ? note(job.ending) : "",
  ])
  if (rows.length && !document.getElementById("filter")) main.append(el("h2", {}, `${rows.length} rows`), tools())
  if (rows.length) section("rows", rows, () => comparison(rows))
  else section("metrics", [job.series, job.metrics, job.damaged], () => [el("h2", {}, "Metrics"), job.damaged ? note(job.damaged) : "", ...metrics(job)])
  if (!document.getElementById("log")) showLog(mine, name, isOver)
  else if (isOver) document.getElementById("log").dataset.over = "yes"
  section("results", job.results, () => [el("h2", {}, "Results"), ...results(job)])
  section("busy", [job.busy, job.usage], () => busy(job))
  section("more", job, () => [
    folded("code", "Code and machine", details({
      "Repository": job.metadata.repo, "Commit": code.head, "As it ran": code.commit !== code.head ? code.commit : "",
      "Changed files": (code.changed || []).join("\n"), "Folder": job.metadata.cwd, "Install": job.metadata.install,
      "Environment": Object.entries(job.metadata.env).map(([key, value]) => `${key}=${value}`).join("\n"),
      "Machines": `${job.metadata.machines} x ${job.metadata.machine_type}: ${machines(job)}`, "GPUs": job.gpus, "Image": job.metadata.image,
    })),
    folded("history", "History", details({
      ...Object.fromEntries(Object.entries(job.times).map(([state, time]) => [state, time.replace("T", " ").replace("Z", " UTC")])),
      "Attempt": String(job.attempt), "By": job.user, "Results": job.results_url, "Saved until": job.synced_until,
      "Not saved": Object.entries(job.missing).map(([path, why]) => `${path}: ${why}`).join("\n"),
    })),
    folded("terminal", "In a terminal", commands(job, isOver)),
  ])
  counted()
  filtered()
  return isOver && !job.instances.length && !job.ending.startsWith("Ending")
}

function commands(job, isOver) {
  const name = job.name, found = [`berg show ${name}`, `berg fetch ${name}`]
  if (!isOver) found.push(`berg tail ${name}`, `berg ssh ${name}`, `berg kill ${name}`)
  if (!name.includes("/")) found.push(...(isOver && job.state !== "SUCCEEDED" ? [`berg run --resume ${name}`] : []), `berg rerun ${name}`)
  return found.map(command)
}

function endButton(job) {
  const disk = job.is_devbox ? " Its disk will be deleted, with all that is on it." : " Its last results are saved first."
  const owner = job.user && job.user !== site.user ? ` It is ${job.user}'s.` : ""
  return el("button", { type: "button", className: "danger", onclick: async event => {
    if (!confirm(`End ${job.name}?${owner}${disk}`)) return
    event.target.disabled = true
    const answer = await fetch(`kill/${of(job.name)}?id=${of(job.id)}`, { method: "POST" })
    if (!answer.ok) alert((await answer.json()).error)
    show()
  } }, "End it …")
}

function metrics(job) {
  const names = Object.keys(job.series)
  if (!names.length && !Object.keys(job.metrics).length) return [weak('None. A job has metrics if it writes lines such as {"step": 1, "loss": 0.5} to $BERG_RESULTS_DIR/metrics.jsonl')]
  return charts(names.map(name => ({ kind: "lines", title: name, lines: [{ name: job.name, points: job.series[name] }] })), () =>
    table([["Metric"], ["Last value"]], Object.entries(job.metrics).map(([key, value]) => ({ cells: [key, digits(value)] }))))
}

function charts(figures, instead) { // with Plotly, or a note how to get it and a table
  if (!figures.length) return [instead()]
  if (!site.plotly) return [weak("Charts need Plotly, which is not installed:"), site.live ? command(site.install) : "", instead()]
  return [el("div", { className: "bar" }, smoother(figures)), el("div", { className: "charts" }, figures.map(figure))]
}

function results(job) {
  const isPicture = site.live ? /\.(png|jpe?g|gif|webp|svg)$/i : /\.(png|jpe?g|gif|webp)$/i
  const isActive = /\.(x?html?|shtml|svgz?|xml|xslt?|m?js|pdf)$/i // are texts in an export
  const ending = path => !site.live && isActive.test(path) ? ".txt" : ""
  const address = path => `file/${site.live ? of(job.name) : job.name}/${path.split("/").map(of).join("/")}${ending(path)}`
  const files = job.results.filter(file => !file.path.endsWith("/"))
  if (!files.length) return [weak("None yet")]
  const pictures = files.filter(file => isPicture.test(file.path)).slice(0, PICTURES)
  const total = files.reduce((sum, file) => sum + file.bytes, 0)
  const open = (file, inner) => el("a", { href: address(file.path), target: "_blank", rel: "noopener" }, inner)
  const shown = file => el("figure", {}, open(file, el("img", { src: address(file.path), alt: file.path, loading: "lazy" })), el("figcaption", {}, file.path))
  const rows = files.slice(0, FILES).map(file => ({ cells: [site.live || file.bytes <= 10 << 20 ? open(file, file.path) : file.path, size(file.bytes)], values: [file.path, file.bytes] }))
  return [
    el("div", { className: "pictures" }, pictures.map(shown)),
    folded("files", `${files.length} files, ${size(total)}`, table([["File"], ["Size"]], rows)),
  ].filter(each => each.childNodes.length)
}

function busy(job) { // a chart for each resource, a line for each machine
  const lines = machines => Object.entries(machines).map(([name, points]) => ({ name, points }))
  const figures = Object.entries(job.busy).map(([title, machines]) => ({ kind: "lines", title: `${title}, %`, across: "minutes", lines: lines(machines) }))
  const last = Object.entries(job.usage).map(([name, row]) => ({ cells: [name, row.mean, row.peak] }))
  if (!last.length) return ""
  return folded("busy", "Utilization", table([["In use, %"], ["Mean"], ["Peak"]], last), site.plotly ? el("div", { className: "charts" }, figures.map(figure)) : "")
}

// --- the log

async function showLog(mine, name, isOver) {
  const lines = el("div", { className: "log", tabIndex: 0, role: "log" })
  const about = el("span", { className: "weak" })
  const find = el("input", { type: "search", placeholder: "Filter", ariaLabel: "Filter the log", oninput: hide })
  main.append(el("section", { id: "log" }, el("h2", {}, "Log"), el("div", { className: "bar" }, find, about), lines))
  function hide() { for (const line of lines.children) line.hidden = !line.textContent.toLowerCase().includes(find.value.toLowerCase()) }
  const part = document.getElementById("log")
  let read = null
  while (mine === turn) {
    isOver = isOver || part.dataset.over === "yes"
    try {
      const query = [read && `from=${of(JSON.stringify(read))}`, isOver && "over=yes"].filter(Boolean).join("&")
      const found = document.hidden && read && !isOver ? { lines: [], read } : await get(`log/${of(name)}?${query}`)
      if (mine !== turn) return
      const whole = { href: site.live ? `text/${of(name)}` : `text/${name}.txt`, target: "_blank", rel: "noopener" }
      if (!read) about.replaceChildren(found.skipped ? `The first ${size(found.skipped)} are in ` : "", el("a", whole, found.skipped ? "all of it" : "As text"))
      read = found.read
      const atEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40
      lines.append(...found.lines.map(line => colored(line)))
      while (lines.children.length > LINES) lines.firstChild.remove()
      if (found.lines.length) hide()
      if (atEnd) lines.scrollTop = lines.scrollHeight
    } catch (error) { if (!read) about.textContent = error.message }
    if (isOver || !site.live) return
    await new Promise(resolve => setTimeout(resolve, FOLLOW))
  }
}

function colored(text) { // a line of a terminal; the server leaves nothing of it but colors
  const line = el("p", {})
  let style = []
  for (const part of text.split(/(\x1b\[[0-9;:]*m)/)) {
    if (!part.startsWith("\x1b[")) {
      if (part) line.append(style.length ? el("span", { className: style.join(" ") }, part) : clean(part))
      continue
    }
    const codes = part.slice(2, -1).split(/[;:]/).map(Number)
    for (let at = 0; at < codes.length; at++) {
      const code = codes[at]
      if (code === 38 || code === 48) at += codes[at + 1] === 5 ? 2 : 4 // one of 256 or of all colors is left out
      else if (code === 0) style = []
      else if (code === 1 || code === 2) style.push(code === 1 ? "bold" : "dim")
      else if (code === 22) style = style.filter(each => each.startsWith("f"))
      else if (code === 39 || (code >= 30 && code < 38) || (code >= 90 && code < 98)) style = [...style.filter(each => !each.startsWith("f")), ...(code === 39 ? [] : [`f${code % 10}`])]
    }
  }
  return line
}

// --- several jobs

// A column for each name: a metric that has the name of a parameter is that column, not a second one.
function comparison(rows) {
  const params = [...new Set(rows.flatMap(row => Object.keys(row.params)))]
  const values = [...new Set(rows.flatMap(row => Object.keys(row.metrics)))].filter(key => !params.includes(key))
  const hasCommands = new Set(rows.map(row => row.command).filter(Boolean)).size > 1
  const columns = [["", "tick"], ...["Name", "State", "Exit", ...params, ...values, ...(hasCommands ? ["Command"] : []), "Reason"].map(title => [title])]
  const lines = rows.map(row => {
    const found = [row.exit_code ?? "", ...params.map(key => row.params[key] ?? row.metrics[key]), ...values.map(key => row.metrics[key])]
    const rest = [...(hasCommands ? [row.command] : []), row.reason]
    return { key: row.name, cells: [tick(row.name), link(row.name), badge(row.state), ...found.map(digits), ...rest], values: ["", row.name, row.state, ...found, ...rest] }
  })
  const differing = params.filter(key => new Set(rows.map(row => row.params[key])).size > 1)
  const measured = values.filter(key => !STEPS.includes(key) && rows.some(row => typeof row.metrics[key] === "number"))
  const scatters = measured.flatMap(up => differing.map(across => {
    const known = rows.filter(row => across in row.params && typeof row.metrics[up] === "number")
    return { kind: "scatter", title: `${up} by ${across}`, across, up, points: known.map(row => [row.params[across], row.metrics[up], row.name]) }
  })).slice(0, SCATTERS)
  return [table(columns, lines), scatters.length && site.plotly ? el("div", { className: "charts" }, scatters.map(figure)) : ""]
}

async function showCompared(mine, names) {
  const chosenJobs = await Promise.all(names.map(getJob))
  const rows = await Promise.all(chosenJobs.map(async job => !job.rows ? [job] : (await get("sweep/" + of(job.name))).filter(row => row.state !== "SUBMITTED")))
  const all = rows.flat().map(row => row.name)
  const jobs = await Promise.all(all.slice(0, COMPARED).map(getJob))
  if (mine !== turn) return true
  document.title = "Compared · berg"
  if (!document.querySelector("h1")) main.append(el("h1", {}, `${jobs.length} jobs compared`), all.length > jobs.length ? note(`${all.length - jobs.length} more do not fit here`) : "", tools())
  const series = [...new Set(jobs.flatMap(job => Object.keys(job.series)))].sort()
  section("rows", jobs.map(job => [job.name, job.state, job.metrics, job.params]), () => comparison(jobs))
  section("metrics", jobs.map(job => job.series), () => {
    const lines = name => jobs.filter(job => name in job.series).map(job => ({ name: job.name, points: job.series[name] }))
    const instead = () => weak(series.length ? "The last values are in the table above." : "None of them has metrics")
    const damaged = jobs.filter(job => job.damaged).map(job => job.name)
    const told = damaged.length ? note(`Lines of metrics.jsonl that cannot be read were left out: of ${damaged.join(", ")}`) : ""
    return [el("h2", {}, "Metrics"), told, charts(series.map(name => ({ kind: "lines", title: name, lines: lines(name) })), instead)]
  })
  if (jobs.length === 2) section("more", names, () => [el("h2", {}, "In a terminal"), command(`berg diff ${jobs[0].name} ${jobs[1].name}`)])
  counted()
  filtered()
  return jobs.every(job => FINAL.includes(job.state))
}

// --- views

async function show(isNew = true) {
  const [view, rest] = location.hash.slice(1).split(/\/(.*)/s), mine = isNew ? ++turn : turn
  if (isNew) {
    main.replaceChildren()
    drawn.clear()
    finished.clear()
    if (view) wanted = ""
  }
  let isOver = !site.live
  try {
    if (view === "job") isOver = await showJob(mine, decodeURIComponent(rest)) || isOver
    else if (view === "compare") isOver = await showCompared(mine, rest.split(",").map(decodeURIComponent)) || isOver
    else await showList(mine)
    document.getElementById("trouble")?.remove()
  } catch (error) {
    if (mine !== turn) return
    document.getElementById("trouble")?.remove()
    main.prepend(el("p", { id: "trouble", className: "note" }, error instanceof TypeError ? `berg page does not answer: ${error.message}` : error.message))
  }
  if (mine === turn && !isOver) setTimeout(() => again(mine), EVERY)
}

function again(mine) { // look again at what is shown, once somebody sees it
  if (mine !== turn) return
  if (document.hidden) document.addEventListener("visibilitychange", () => again(mine), { once: true })
  else show(false)
}

document.addEventListener("keydown", event => { // / searches, j and k move through a list, Enter opens
  const field = document.activeElement?.matches("input:not([type=checkbox])")
  if (event.key === "Escape" && field) document.activeElement.blur()
  if (field || event.ctrlKey || event.metaKey || event.altKey) return
  if (event.key === "/") { document.querySelector("input[type=search]")?.focus(); event.preventDefault() }
  if (event.key === "j" || event.key === "k") {
    const links = [...document.querySelectorAll("tr[data-job]:not([hidden]) a")]
    links[Math.max(0, Math.min(links.length - 1, links.indexOf(document.activeElement) + (event.key === "j" ? 1 : -1)))]?.focus()
  }
})

addEventListener("hashchange", () => show())
get("site").then(found => {
  site = found
  document.getElementById("where").textContent = clean(site.where)
  show()
})
