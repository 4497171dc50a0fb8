"use strict";
(function () {
  var data = JSON.parse(document.getElementById("data").textContent);
  var SVG = "http://www.w3.org/2000/svg";
  function make(name, of, text) {
    var e = document.createElementNS(SVG, name);
    Object.keys(of).forEach(function (k) { e.setAttribute(k, of[k]); });
    if (text !== undefined) e.textContent = text;
    return e;
  }
  function time(ns) {
    var units = [[1e9, " s"], [1e6, " ms"], [1e3, " us"]];
    for (var i = 0; i < units.length; i++) if (ns >= units[i][0]) return +(ns / units[i][0]).toPrecision(3) + units[i][1];
    return ns + " ns";
  }
  // A row for each power of two, a column for each interval; the darker (in the dark: the lighter) the more calls.
  function heat(name) {
    var picture = document.getElementById("heat"), cells = data.heat[name] || [];
    while (picture.firstChild) picture.removeChild(picture.firstChild);
    document.querySelectorAll("tr.pick").forEach(function (r) { r.classList.toggle("chosen", r.dataset.name === name); });
    if (!cells.length) { picture.setAttribute("viewBox", "0 0 1000 30"); picture.appendChild(make("text", { x: 4, y: 20, "class": "axis" }, "no call of it returned")); return; }
    var rows = cells.map(function (c) { return c[1]; }), low = Math.min.apply(null, rows), high = Math.max.apply(null, rows);
    var most = Math.max.apply(null, cells.map(function (c) { return c[2]; }));
    var left = 70, h = 18, n = data.columns.length, w = (1000 - left) / n, height = (high - low + 1) * h;
    picture.setAttribute("viewBox", "0 0 1000 " + (height + 24));
    for (var row = low; row <= high; row++)
      picture.appendChild(make("text", { x: left - 6, y: (high - row) * h + 13, "text-anchor": "end", "class": "axis" }, time(row ? Math.pow(2, row - 1) : 0)));
    var isDark = window.matchMedia("(prefers-color-scheme: dark)").matches;
    cells.forEach(function (c) {
      var part = Math.log(c[2] + 1) / Math.log(most + 1), light = isDark ? 18 + 57 * part : 92 - 52 * part;
      var cell = make("rect", { x: (left + c[0] * w).toFixed(2), y: (high - c[1]) * h, width: Math.max(w - (w > 4 ? 1 : 0), .5).toFixed(2), height: h - 1, fill: "hsl(" + (45 - 30 * part) + ",85%," + light + "%)" });
      var from = c[1] ? Math.pow(2, c[1] - 1) : 0, to = Math.pow(2, c[1]);
      cell.appendChild(make("title", {}, c[2] + " calls of " + time(from) + " to " + time(to) + ", until " + (data.columns[c[0]] / 1000).toFixed(1) + " s"));
      picture.appendChild(cell);
    });
    var steps = Math.min(n, 10);
    for (var i = 0; i < steps; i++) {
      var column = Math.floor(i * n / steps);
      picture.appendChild(make("text", { x: left + column * w, y: height + 16, "class": "axis" }, (data.columns[column] / 1000).toFixed(1) + " s"));
    }
  }
  var choice = document.getElementById("choice");
  function choose(name) { if (choice) { choice.value = name; heat(name); } }
  if (choice) {
    choice.addEventListener("change", function () { heat(choice.value); });
    document.querySelectorAll("tr.pick").forEach(function (r) {
      r.addEventListener("click", function () { if (data.heat[r.dataset.name]) choose(r.dataset.name); });
    });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () { heat(choice.value); });
    heat(choice.value);
  }
  // Tables are sorted by the column whose head is clicked; again: the other way round.
  document.querySelectorAll("th.sorts").forEach(function (head) {
    head.addEventListener("click", function () {
      var table = head.closest("table"), body = table.tBodies[0], at = head.cellIndex;
      var rows = Array.from(body.rows), isDown = head.dataset.down !== "1";
      table.querySelectorAll("th").forEach(function (h) { h.dataset.down = ""; });
      head.dataset.down = isDown ? "1" : "";
      function key(row) { var v = row.cells[at].dataset.v; return v === undefined ? row.cells[at].textContent : Number(v); }
      rows.sort(function (a, b) {
        var x = key(a), y = key(b), order = typeof x === "number" ? x - y : (x < y ? 1 : x > y ? -1 : 0);
        return isDown ? -order : order;
      });
      rows.forEach(function (row) { body.appendChild(row); });
    });
  });
  window.report = { choose: choose };
})();
