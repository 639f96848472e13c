"use strict";
// Renders the OpenAPI document. Everything that comes from it goes in as text, never as markup.

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  for (const child of children) if (child !== null) made.append(child);
  return made;
}

function kind(schema) {
  if (!schema || Object.keys(schema).length === 0) return "anything";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.anyOf) return schema.anyOf.map(kind).join(" | ");
  if (schema.type === "array") return "[" + kind(schema.items) + "]";
  if (schema.type === "object" && schema.additionalProperties) {
    return "{name: " + kind(schema.additionalProperties) + "}";
  }
  let text = schema.type || "anything";
  if (schema.format) text += " (" + schema.format + ")";
  if (schema.minimum !== undefined) text += " ≥ " + schema.minimum;
  if (schema.maximum !== undefined) text += " ≤ " + schema.maximum;
  return text;
}

function typed(schema) {
  const text = kind(schema);
  const name = text.replace(/[^A-Za-z]/g, "");
  return known.has(name) ? element("a", { href: "#schema-" + name }, text) : element("span", {}, text);
}

function table(heads, rows) {
  const head = element("tr", {}, ...heads.map((name) => element("th", {}, name)));
  const body = rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, cell))));
  return element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
}

function code(text) {
  return element("code", {}, text);
}

// Text with `code` in it.
function prose(text) {
  return element("span", {}, ...(text || "").split("`").map((part, at) => at % 2 ? code(part) : part));
}

function operation(path, method, found) {
  const title = element("summary", {},
    element("span", { class: "method " + method }, method.toUpperCase()),
    element("span", { class: "path" }, path), element("span", { class: "about" }, prose(found.summary)));
  const inside = element("div", {});
  if (found.parameters.length) {
    inside.append(element("h4", {}, "Parameters"), table(["Name", "In", "Type", "Meaning"],
      found.parameters.map((p) => [code(p.name), p.in, typed(p.schema), prose(p.description)])));
  }
  if (found.requestBody) {
    const schema = found.requestBody.content["application/json"].schema;
    inside.append(element("h4", {}, "Body"), element("p", {}, typed(schema), " ", prose(found.requestBody.description)));
  }
  inside.append(element("h4", {}, "Answers"), table(["Status", "Type", "Meaning"],
    Object.entries(found.responses).map(([status, answer]) => {
      const [media, content] = Object.entries(answer.content || {})[0] || ["", {}];
      return [code(status), element("span", {}, typed(content.schema), " ", media), prose(answer.description)];
    })));
  return element("details", { id: found.operationId }, title, inside);
}

function struct(name, schema) {
  const required = new Set(schema.required || []);
  const inside = element("div", {}, element("p", {}, prose(schema.description)));
  if (schema.properties) {
    inside.append(table(["Field", "Type", "", "Meaning"], Object.entries(schema.properties).map(([field, shape]) =>
      [code(field), typed(shape), required.has(field) ? "required" : "", prose(shape.description)])));
  }
  return element("details", { id: "schema-" + name }, element("summary", {}, code(name)), inside);
}

let known = new Set();

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target) { target.open = true; target.scrollIntoView(); }
}

// The page itself holds nothing secret, and browsers cannot send a token when they open one: it asks, and forgets.
function askForToken(place, again) {
  const input = element("input", { type: "password", autocomplete: "off", "aria-label": "Token" });
  const form = element("form", {}, element("p", {}, again ? "That is not this server's token." : "This server asks for its token."),
    input, " ", element("button", {}, "Show"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    form.remove();
    render(input.value);
  });
  place.append(form);
  input.focus();
}

async function render(token) {
  const place = document.getElementById("reference");
  const headers = token ? { Authorization: "Bearer " + token } : {};
  const answer = await fetch("/api/v1/openapi.json", { headers });
  if (answer.status === 401) {
    askForToken(place, Boolean(token));
    return;
  }
  if (!answer.ok) {
    place.append(element("p", {}, "The document could not be read: status " + answer.status));
    return;
  }
  const found = await answer.json();
  const schemas = {};
  for (const [name, schema] of Object.entries(found.components.schemas)) Object.assign(schemas, { [name]: schema }, schema.$defs);
  known = new Set(Object.keys(schemas));
  place.append(element("p", {}, found.info.description, " ", element("a", { href: "/api/v1/openapi.json" }, "openapi.json")));
  const groups = new Map();
  for (const [path, methods] of Object.entries(found.paths)) {
    for (const [method, one] of Object.entries(methods)) {
      const tag = one.tags[0];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operation(path, method, one));
    }
  }
  for (const [tag, operations] of groups) place.append(element("h2", {}, tag), ...operations);
  place.append(element("h2", {}, "types"));
  for (const [name, schema] of Object.entries(schemas)) place.append(struct(name, schema));
  window.addEventListener("hashchange", openTarget);
  openTarget();
}

render();
