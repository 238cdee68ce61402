import { openPage } from "../core/page.js";
import mount from "./head_view.js";

openPage(mount);
