// Updates, sorting and filtering of the pages.
"use strict"

const main = document.querySelector("main")
const every = Number(document.body.dataset.every || 0) // seconds; 0 on disk, where nothing changes

// Tables that sort by a click on a heading, numbers as numbers.
function sortable(table) {
  const head = [...table.tHead.rows[0].cells]
  head.forEach((cell, column) => {
    const button = document.createElement("button")
    button.append(...cell.childNodes)
    cell.append(button)
    button.onclick = () => {
      const up = cell.getAttribute("aria-sort") !== "ascending"
      head.forEach(other => other.removeAttribute("aria-sort"))
      cell.setAttribute("aria-sort", up ? "ascending" : "descending")
      sort(table, column, up)
    }
  })
}

function sort(table, column, up) {
  const key = row => { const cell = row.cells[column]; return cell.dataset.value ?? cell.textContent }
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)]
    if (!x || !y) return x ? -1 : y ? 1 : 0 // no value: last
    const both = x !== "" && y !== "" && !isNaN(x) && !isNaN(y)
    return (both ? x - y : x.localeCompare(y, undefined, { numeric: true })) * (up ? 1 : -1)
  })
  table.tBodies[0].append(...rows)
}

function keep(table, old) { // sort a new table as the old one
  const column = old ? [...old.tHead.rows[0].cells].findIndex(cell => cell.ariaSort) : -1
  if (column < 0) return
  const how = old.tHead.rows[0].cells[column].getAttribute("aria-sort")
  table.tHead.rows[0].cells[column].setAttribute("aria-sort", how)
  sort(table, column, how === "ascending")
}

const filter = document.getElementById("filter")
function filtered() {
  const wanted = filter ? filter.value.toLowerCase() : ""
  for (const row of document.querySelectorAll("#list tbody tr")) row.hidden = !row.textContent.toLowerCase().includes(wanted)
  if (window.filterFigures) filterFigures()
}
if (filter) filter.oninput = filtered

function light(event) { // highlight a job's row, line and points
  const found = event.target.closest && event.target.closest("[data-job]")
  for (const each of document.querySelectorAll(".lit")) each.classList.remove("lit")
  if (found) for (const each of document.querySelectorAll("[data-job]")) each.classList.toggle("lit", each.dataset.job === found.dataset.job)
  if (window.lightFigures) lightFigures(found ? found.dataset.job : "")
}
document.addEventListener("pointerover", light)

function copyable(line) { // add a button that copies the command
  if (line.querySelector("button")) return
  const button = document.createElement("button"), command = line.querySelector("code").textContent
  button.textContent = "Copy"
  button.onclick = async () => {
    await navigator.clipboard.writeText(command).then(() => { button.textContent = "Copied" }, () => getSelection().selectAllChildren(line.querySelector("code")))
  }
  line.append(" ", button)
}

function enliven(part, old) {
  const commands = part.matches("#commands") ? part : part.querySelector("#commands")
  if (commands) commands.querySelectorAll("p").forEach(copyable)
  for (const table of part.querySelectorAll("table.sortable")) { sortable(table); keep(table, old && old.querySelector("table.sortable")) }
  for (const box of old ? old.querySelectorAll("input[name=job]:checked") : []) {
    const same = [...part.querySelectorAll("input[name=job]")].find(other => other.value === box.value)
    if (same) same.checked = true
  }
  if (window.drawFigures) drawFigures(part)
  filtered()
}
enliven(main)

// Live sections are loaded again and replaced if they changed, but not while the user is at a chart in them.
const before = new Map([...document.querySelectorAll("section[data-live]")].map(part => [part.id, part.innerHTML]))
async function renew() {
  if (document.hidden || location.search) return
  const answer = await fetch(location.pathname)
  if (!answer.ok) return
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html")
  for (const part of fresh.querySelectorAll("section[data-live]")) {
    const here = document.getElementById(part.id)
    if (here && (before.get(part.id) === part.innerHTML || here.matches(":active, :has(figure:hover), :has(figure :focus-visible), :has(.zoomed)"))) continue
    before.set(part.id, part.innerHTML)
    if (here) here.replaceWith(part)
    else main.querySelector("h2").before(part)
    enliven(part, here)
  }
}
if (every) setInterval(() => renew().catch(() => {}), every * 1000)

// New lines of the log are added to its end. It scrolls only if its end is visible.
const log = document.querySelector(".log")
const find = document.getElementById("find")
function found() {
  const wanted = find ? find.value.toLowerCase() : ""
  if (log) for (const line of log.querySelectorAll("p")) line.hidden = !line.textContent.toLowerCase().includes(wanted)
}
if (find && !location.search) find.oninput = found
if (find && !every) find.form.onsubmit = event => event.preventDefault()

async function follow() {
  const answer = await fetch(`log?from=${encodeURIComponent(log.dataset.follow)}`)
  if (!answer.ok) return true
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html")
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40
  log.dataset.follow = answer.headers.get("Berg-From")
  log.querySelector(".whole").append(...fresh.querySelector(".whole").childNodes)
  log.querySelector(".rest").replaceChildren(...fresh.querySelector(".rest").childNodes)
  found()
  if (atEnd) log.scrollTop = log.scrollHeight
  return answer.headers.get("Berg-Over") !== "over"
}
async function followed() {
  const more = document.hidden || await follow().catch(() => true)
  if (more) setTimeout(followed, 2000)
}
if (log && !location.search) {
  log.scrollTop = log.scrollHeight
  if (log.dataset.follow) followed()
}

// Keys: / searches, j and k move through the list, Enter opens.
document.addEventListener("keydown", event => {
  const field = document.activeElement && document.activeElement.matches("input:not([type=checkbox])")
  if (event.key === "Escape" && field) document.activeElement.blur()
  if (field || event.ctrlKey || event.metaKey || event.altKey) return
  if (event.key === "/") { const box = filter || find; if (box) { box.focus(); event.preventDefault() } }
  if (event.key === "j" || event.key === "k") {
    const links = [...document.querySelectorAll("#list tbody tr:not([hidden]) td:first-child a")]
    const here = links.indexOf(document.activeElement)
    const next = links[Math.max(0, Math.min(links.length - 1, here + (event.key === "j" ? 1 : -1)))]
    if (next) next.focus()
  }
})
