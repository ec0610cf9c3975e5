// Draws the blocks of a page anew from its JSON twin, every few seconds while somebody looks. Text goes in as text only.
(function () {
  "use strict";

  var PAUSE = 5000;
  var root = document.getElementById("poimen");
  var place = document.getElementById("poimen-blocks");
  var status = document.getElementById("poimen-status");
  var dot = document.getElementById("poimen-dot");
  if (!root || !place || !root.dataset.twin) {
    return;
  }

  function make(tag, className, text) {
    var made = document.createElement(tag);
    if (className) {
      made.className = className;
    }
    if (text !== undefined) {
      made.textContent = text;
    }
    return made;
  }

  function link(text, href, className) {
    var made = make("a", className, text);
    made.setAttribute("href", href);
    return made;
  }

  function content(cell) {
    var found = [];
    var kind = "poimen-text" + (cell.strong ? " fw-semibold" : "");
    if (cell.done !== undefined) {
      var bar = make("progress", "poimen-progress");
      bar.max = cell.total;
      bar.value = cell.done;
      var done = make("span", "poimen-done");
      done.append(bar, " " + cell.text);
      found.push(done);
    } else if (cell.badge !== undefined) {
      found.push(make("span", "badge text-bg-" + cell.badge, cell.text));
    } else if (cell.href !== undefined) {
      found.push(link(cell.text, cell.href, kind));
    } else {
      found.push(make("span", kind, cell.text));
    }
    return found;
  }

  function cards(block) {
    var made = make("section", "metric-grid");
    block.items.forEach(function (item) {
      var card = make("article", "metric-card" + (item.tone ? " metric-card-" + item.tone : ""));
      card.append(make("p", "metric-label", item.label), make("p", "metric-value", item.value));
      made.append(card);
    });
    return made;
  }

  function links(block) {
    var made = make("ul", "nav nav-pills mb-3");
    block.items.forEach(function (item) {
      var one = make("li", "nav-item");
      one.append(link(item.text, item.href, "nav-link py-1 px-2" + (item.active ? " active" : "")));
      made.append(one);
    });
    return made;
  }

  function rows(block) {
    var body = make("tbody");
    block.rows.forEach(function (row) {
      var line = make("tr");
      row.forEach(function (cell, at) {
        if (block.kind === "facts" && at === 0) {
          line.append(make("th", "", cell));
          return;
        }
        var td = make("td", block.columns ? block.columns[at].class : "");
        td.append.apply(td, content(cell));
        line.append(td);
      });
      body.append(line);
    });
    if (!block.rows.length) {
      var empty = make("td", "empty-table-message text-center", block.empty);
      empty.colSpan = block.columns ? block.columns.length : 2;
      var only = make("tr");
      only.append(empty);
      body.append(only);
    }
    return body;
  }

  function table(block) {
    var section = make("section", "mb-4");
    var card = make("div", "workers-table-card");
    var scroll = make("div", "table-responsive");
    var made = make("table", "workers-table table table-hover align-middle mb-0 poimen-" + block.kind);
    if (block.title) {
      section.append(make("h2", "h6", block.title));
    }
    if (block.columns) {
      var head = make("tr");
      block.columns.forEach(function (column) {
        head.append(make("th", column.class, column.name));
      });
      var top = make("thead");
      top.append(head);
      made.append(top);
    }
    made.append(rows(block));
    scroll.append(made);
    card.append(scroll);
    section.append(card);
    if (block.note) {
      section.append(make("p", "small text-body-secondary mt-1 mb-0", block.note));
    }
    return section;
  }

  function draw(block) {
    if (block.kind === "cards") {
      return cards(block);
    }
    if (block.kind === "links") {
      return links(block);
    }
    if (block.kind === "notice") {
      return make("p", "alert alert-" + block.tone, block.text);
    }
    return table(block);
  }

  var drawn = [];

  // A block that did not change stays as it is, and so does what somebody writes into a form.
  function show(blocks) {
    var children = Array.prototype.slice.call(place.children);
    var kept = drawn.length === 0 ? children.length : drawn.length;
    if (kept !== blocks.length) {
      place.replaceChildren.apply(place, blocks.map(draw));
    } else {
      blocks.forEach(function (block, at) {
        var text = JSON.stringify(block);
        if (text !== drawn[at] && block.kind !== "form") {
          children[at].replaceWith(draw(block));
        }
      });
    }
    drawn = blocks.map(function (block) {
      return JSON.stringify(block);
    });
  }

  function say(text, live) {
    status.textContent = text;
    dot.className = "status-dot " + (live ? "status-dot-live" : "status-dot-error");
  }

  function refresh() {
    if (document.hidden) {
      return;
    }
    fetch(root.dataset.twin, { credentials: "same-origin", headers: { Accept: "application/json" } })
      .then(function (reply) {
        return reply.json().then(function (data) {
          show(data.blocks);
          say(reply.ok ? "Updated " + new Date().toLocaleTimeString() : "Not available", reply.ok);
        });
      })
      .catch(function () {
        say("Flower does not answer", false);
      });
  }

  window.setInterval(refresh, PAUSE);
  document.addEventListener("visibilitychange", refresh);
  refresh();
})();
