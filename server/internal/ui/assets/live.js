// Applies the changes that the server sends to the page: see live.go. A page without this script shows what was when
// it was loaded.
"use strict";
(function () {
	const of = document.body.dataset.of;
	const state = document.getElementById("live");
	if (!of || !state || !window.EventSource) return;

	// parse makes an element of HTML that the server has escaped. Rows and parts of pictures need their parents.
	function parse(html) {
		const t = document.createElement("template");
		t.innerHTML = html;
		return t.content.firstElementChild;
	}

	// morph makes an element like another one, and leaves alone what is the same, so that focus, selection and
	// open details stay.
	function morph(to, from) {
		if (to.nodeType !== from.nodeType || to.nodeName !== from.nodeName) {
			to.replaceWith(from);
			return;
		}
		if (to.nodeType !== Node.ELEMENT_NODE) {
			if (to.nodeValue !== from.nodeValue) to.nodeValue = from.nodeValue;
			return;
		}
		for (const a of [...to.attributes]) {
			if (!from.hasAttribute(a.name) && a.name !== "open") to.removeAttribute(a.name);
		}
		for (const a of from.attributes) {
			if (to.getAttribute(a.name) !== a.value) to.setAttribute(a.name, a.value);
		}
		const have = [...to.childNodes], want = [...from.childNodes];
		want.forEach((child, i) => {
			if (i < have.length) morph(have[i], child);
			else to.appendChild(child);
		});
		have.slice(want.length).forEach((child) => child.remove());
	}

	function apply(change) {
		const html = change.html || {};
		for (const [id, ids] of Object.entries(change.order || {})) {
			const box = document.getElementById(id);
			if (!box) continue;
			const focused = box.contains(document.activeElement) ? document.activeElement : null;
			// While somebody is in a list, what is there keeps its place.
			if (!focused) {
				ids.forEach((child, i) => {
					let el = document.getElementById(child);
					if (!el && html[child]) el = parse(html[child]);
					if (el && box.children[i] !== el) box.insertBefore(el, box.children[i] || null);
				});
			} else {
				for (const child of ids) {
					if (!document.getElementById(child) && html[child]) box.appendChild(parse(html[child]));
				}
			}
			const stay = new Set(ids);
			for (const el of [...box.children]) {
				if (!stay.has(el.id) && !el.contains(focused)) el.remove();
			}
		}
		for (const [id, text] of Object.entries(html)) {
			const el = document.getElementById(id);
			if (el) morph(el, parse(text));
		}
	}

	let source = null;
	let paused = false;
	const button = document.getElementById("pause");
	function say(text, kind) {
		if (state.textContent !== text) state.textContent = text;
		state.className = "pill " + kind;
	}
	function open() {
		source = new EventSource("/ui/events?of=" + encodeURIComponent(of));
		source.onopen = () => say("live", "good");
		source.onerror = () => say("reconnecting", "warn");
		source.onmessage = (e) => {
			const begin = performance.now();
			apply(JSON.parse(e.data));
			document.body.dataset.updates = Number(document.body.dataset.updates || 0) + 1;
			document.body.dataset.slowest = Math.max(Number(document.body.dataset.slowest || 0), performance.now() - begin);
		};
	}
	function close() {
		if (source) source.close();
		source = null;
	}
	button.hidden = false;
	button.addEventListener("click", () => {
		paused = !paused;
		button.textContent = paused ? "Go on" : "Pause";
		if (paused) { close(); say("paused", "warn"); } else open();
	});
	document.addEventListener("visibilitychange", () => {
		if (paused) return;
		if (document.hidden) close(); else if (!source) open();
	});
	window.addEventListener("pagehide", close);
	window.addEventListener("pageshow", (e) => { if (e.persisted && !paused && !source) open(); });
	open();
})();
