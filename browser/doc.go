// Package browser tests the dashboard in a real browser: headless Chromium, driven by chromedp. It is a module of its
// own, so that the driver is no dependency of stint. ./scripts/browser installs what it needs and runs it.
package browser
