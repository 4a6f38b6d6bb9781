var module = {}; // anser.js is a CommonJS module: this is where it leaves its class.
