"use strict";
(function () {
  var margin = 10, width = 1180, letter = 7.2;
  var frames = Array.from(document.querySelectorAll("#frames .f")).map(function (g) {
    return {
      g: g, rect: g.querySelector("rect"), text: g.querySelector("text"), name: g.dataset.n,
      count: Number(g.dataset.c), from: Number(g.dataset.f), depth: Number(g.dataset.d)
    };
  });
  var root = frames[0], focus = root, pattern = null;
  var detail = document.getElementById("detail"), matched = document.getElementById("matched");
  function label(name, room) {
    if (room < 3) return "";
    return name.length <= room ? name : name.slice(0, room - 2) + "..";
  }
  function draw() {
    var scale = width / focus.count, end = focus.from + focus.count;
    frames.forEach(function (f) {
      var isBelow = f.depth < focus.depth && f.from <= focus.from && f.from + f.count >= end;
      var isShown = isBelow || (f.depth >= focus.depth && f.from >= focus.from && f.from + f.count <= end);
      f.g.style.display = isShown ? "" : "none";
      if (!isShown) return;
      var x = isBelow ? margin : margin + (f.from - focus.from) * scale;
      var w = isBelow ? width : f.count * scale;
      f.rect.setAttribute("x", x.toFixed(2));
      f.rect.setAttribute("width", Math.max(w, 0.1).toFixed(2));
      f.text.setAttribute("x", (x + 3).toFixed(2));
      f.text.textContent = label(f.name, Math.floor((w - 6) / letter));
      f.g.classList.toggle("dim", isBelow);
    });
  }
  function zoom(f) { focus = f; draw(); }
  function search(text) {
    pattern = null;
    try { if (text) pattern = new RegExp(text); } catch (e) { matched.textContent = String(e.message); return; }
    var spans = [];
    frames.forEach(function (f) {
      var is = pattern !== null && pattern.test(f.name);
      f.g.classList.toggle("found", is);
      if (is) spans.push([f.from, f.from + f.count]);
    });
    spans.sort(function (a, b) { return a[0] - b[0] || b[1] - a[1]; });
    var sum = 0, end = 0;
    spans.forEach(function (s) { if (s[1] > end) { sum += s[1] - Math.max(s[0], end); end = s[1]; } });
    matched.textContent = pattern ? "found: " + (100 * sum / root.count).toFixed(2) + " %" : " ";
  }
  frames.forEach(function (f) {
    f.g.addEventListener("click", function () { zoom(f); });
    f.g.addEventListener("mouseover", function () { detail.textContent = f.g.querySelector("title").textContent; });
    f.g.addEventListener("mouseout", function () { detail.textContent = " "; });
  });
  document.getElementById("reset").addEventListener("click", function () { zoom(root); });
  document.getElementById("search").addEventListener("click", function () {
    var text = window.prompt("Names to find (a regular expression)", pattern ? pattern.source : "");
    if (text !== null) search(text);
  });
  window.addEventListener("keydown", function (e) { if (e.key === "Escape") { search(""); zoom(root); } });
  window.nanoprobe = { zoom: function (name) { zoom(frames.find(function (f) { return f.name === name; })); }, search: search };
})();
